"""The certificate: checks that drafting changes no text, run on this machine and kept beside the models."""
