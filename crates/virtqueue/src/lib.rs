//! Walking a split virtqueue: a chain comes out as checked spans of guest memory and a head to complete it by.
//!
//! `virtio-queue` keeps the indices and the notification rules; the descriptors are walked here, because its iterator
//! simply ends at a malformed one and nobody could tell the guest. What a guest can get wrong in a chain is a
//! [`ChainFault`] and the queue goes on; what it can get wrong in the ring itself is a [`RingError`] and ends the
//! session.
//!
//! A [`Ring`] belongs to one thread. Other threads finish requests through a [`Token`], which posts to the ring's
//! owner and never to the ring.
#![forbid(unsafe_code)]
#![deny(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects
)]

mod chain;
mod ring;
mod token;

pub use chain::{Chain, ChainFault};
pub use ring::{Ring, RingAddresses, RingError};
pub use token::{Finished, Post, Token};
