# us3l serve in a container: see docs/serving.md. The model is mounted at /model.
FROM python:3.11-slim

RUN useradd --create-home --uid 10001 us3l
WORKDIR /opt/us3l
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY us3l ./us3l
RUN python -m pip install --no-cache-dir --disable-pip-version-check --constraint constraints.txt '.[serve,deploy]'

USER us3l
WORKDIR /home/us3l
ENV OMP_NUM_THREADS=1 PYTHONUNBUFFERED=1
EXPOSE 8000
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=5s --start-period=120s \
    CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8000/health', timeout=4)"]
ENTRYPOINT ["us3l", "serve", "/model", "--host", "0.0.0.0", "--port", "8000"]
