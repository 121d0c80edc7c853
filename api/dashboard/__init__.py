"""The dashboard at `/`: what the streams do, shown in a browser."""
