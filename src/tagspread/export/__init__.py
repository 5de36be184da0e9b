"""Export: ONNX files, folders with a model card, and pseudo-labels for Label Studio and FiftyOne."""
