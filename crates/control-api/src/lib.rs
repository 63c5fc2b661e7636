//! Operator API: versioned types and client.
