"""Manifests for Kubernetes, written from docker-compose.kafka.yml and the catalogue of topics."""
