"""Manifests for Kubernetes, generated from docker-compose.kafka.yml and the catalogue of topics."""
