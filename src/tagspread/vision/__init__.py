"""Images on the device: views and networks."""
