"""The HTTP edge: the gunicorn worker class that the service is served by."""
