//! Operator API server.
