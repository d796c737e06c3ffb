"""The plan as one HTML page that needs nothing else: SVG drawings, one small script explores."""
