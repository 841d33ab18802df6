"""What tests share: fake machines, reference models, makers of files, programs under test."""
