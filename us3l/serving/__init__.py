"""One copy of weights behind HTTP: a service that holds its latency under load by changing its width.

`settings.py` is what it accepts, `model.py` a model made ready, `scheduling.py` the queue and the threads that compute,
`service.py` these together; `api.py`, `bodies.py`, `application.py`, `pages.py`, `limits.py` and `server.py` are HTTP.
"""
