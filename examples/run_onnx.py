"""Tag images with an exported file, without tagspread or PyTorch: python run_onnx.py tags.onnx photo.jpg ..."""

import json
import sys

import numpy as np
import onnxruntime  # type: ignore[import-untyped]
from PIL import Image, ImageOps

model, *files = sys.argv[1:] if sys.argv[2:] else sys.exit("usage: python run_onnx.py tags.onnx photo.jpg ...")
session = onnxruntime.InferenceSession(model)
about = {name: json.loads(text) for name, text in session.get_modelmeta().custom_metadata_map.items()}
classes, thresholds = np.array(about["classes"]), np.array(about["thresholds"], float)  # null: NaN, never reached
height, width = about["image_size"]
for file in files:
    photo = ImageOps.exif_transpose(Image.open(file)).convert("RGB")
    image = np.asarray(photo.resize((width, height), Image.Resampling.BILINEAR))  # or leave that to the file
    probabilities = session.run(None, {"images": image[None]})[0][0]
    print(file, *classes[probabilities >= thresholds], sep="\t")
