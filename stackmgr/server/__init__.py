"""The HTTP server: the gunicorn worker class that serves the application."""
