"""The gunicorn worker class that the service is served by."""
