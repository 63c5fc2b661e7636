//! Encryption of stored chunks, with a key that lives and ends with the store.

use std::sync::atomic::{AtomicU64, Ordering};

use ring::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, Tag, UnboundKey};
use ring::error::Unspecified;
use ring::rand::{SecureRandom, SystemRandom};

/// What is kept of a sealed chunk: which number it was sealed under, and its tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Seal {
    number: u64,
    tag: [u8; 16],
}

/// AES-256-GCM with a random key. Every chunk is sealed under a number of its own, which is never used again and is
/// kept in memory: a chunk put back from an earlier time or from another place does not open.
pub(crate) struct Sealer {
    key: LessSafeKey,
    next: AtomicU64,
}

impl Sealer {
    /// A new key from the system's generator. Fails only if that does.
    pub(crate) fn new() -> Result<Self, Unspecified> {
        let key: [u8; 32] = random_bytes()?;
        Ok(Self { key: LessSafeKey::new(UnboundKey::new(&AES_256_GCM, &key)?), next: AtomicU64::new(0) })
    }

    /// Encrypts in place.
    pub(crate) fn seal(&self, bytes: &mut [u8]) -> Result<Seal, Unspecified> {
        // 2^64 chunks are not written in the life of a process.
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let tag = self.key.seal_in_place_separate_tag(nonce(number), Aad::empty(), bytes)?;
        Ok(Seal { number, tag: tag.as_ref().try_into().map_err(|_wrong_length| Unspecified)? })
    }

    /// Decrypts in place; whether these are the bytes that were sealed.
    pub(crate) fn open(&self, seal: Seal, bytes: &mut [u8]) -> bool {
        let tag = Tag::from(seal.tag);
        self.key.open_in_place_separate_tag(nonce(seal.number), Aad::empty(), tag, bytes, 0..).is_ok()
    }
}

fn nonce(number: u64) -> Nonce {
    let mut bytes = [0; NONCE_LEN];
    bytes.iter_mut().zip(number.to_le_bytes()).for_each(|(to, from)| *to = from);
    Nonce::assume_unique_for_key(bytes)
}

/// Bytes nobody can guess.
pub(crate) fn random_bytes<const LEN: usize>() -> Result<[u8; LEN], Unspecified> {
    let mut bytes = [0; LEN];
    SystemRandom::new().fill(&mut bytes)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn open_of_sealed_is_the_same_and_of_anything_else_is_refused() {
        let sealer = Sealer::new().unwrap();
        let plain = *b"twenty bytes of text";
        let (mut first, mut second) = (plain, plain);
        let first_seal = sealer.seal(&mut first).unwrap();
        let second_seal = sealer.seal(&mut second).unwrap();
        assert!(first != plain && first != second, "every chunk is sealed differently");
        for bit in 0..first.len() * 8 {
            let mut damaged = first;
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert!(!sealer.open(first_seal, &mut damaged), "{bit}");
        }
        assert!(!sealer.open(second_seal, &mut first.clone()), "a chunk of an earlier time");
        assert!(!Sealer::new().unwrap().open(first_seal, &mut first.clone()), "another key");
        assert!(sealer.open(first_seal, &mut first));
        assert_eq!(first, plain);
    }
}
