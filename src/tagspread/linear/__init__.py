"""The method on features, without a network to train: logistic regression (or a small hidden layer) in rounds."""
