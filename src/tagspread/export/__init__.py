"""A run for places where tagspread is not: one ONNX file, or a folder with a model card."""
