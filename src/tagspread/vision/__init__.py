"""Pictures on the device: views and networks."""
