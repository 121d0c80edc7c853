"""The dashboard at `/`: the activity of the streams, in a browser."""
