"""In which order was it computed? A catalogue of orders is replayed until one has the bits."""
