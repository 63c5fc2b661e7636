//! Plans, orders and completes copies on GPU streams.
