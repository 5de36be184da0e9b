"""Semi-supervised learning on a feature matrix: logistic regression or a small MLP, in rounds of pseudo-labeling."""
