"""What tests share: reference models, clients, brokers, downloads. Slow and obvious."""
