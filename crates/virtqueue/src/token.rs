//! The duty to complete a chain.

use std::fmt;
use std::sync::Arc;

/// A chain is done, or was forgotten.
#[derive(Debug)]
pub struct Finished<T> {
    /// Which.
    pub head: u16,
    /// The result; `None` when its token was dropped unused, which is a bug of ours.
    pub result: Option<T>,
}

/// Where finished chains go: the thread that owns the ring. Posting never blocks.
pub trait Post<T>: Send + Sync {
    /// Hands over one finished chain.
    fn post(&self, finished: Finished<T>);
}

/// The duty to complete one chain, exactly once. Used up by [`Token::finish`]; dropping it unused posts that too.
pub struct Token<T> {
    head: u16,
    post: Option<Arc<dyn Post<T>>>,
}

impl<T> Token<T> {
    /// The duty for a chain just taken.
    pub fn new(head: u16, post: Arc<dyn Post<T>>) -> Self {
        Self { head, post: Some(post) }
    }

    /// The chain is done.
    pub fn finish(mut self, result: T) {
        if let Some(post) = self.post.take() {
            post.post(Finished { head: self.head, result: Some(result) });
        }
    }
}

impl<T> Drop for Token<T> {
    fn drop(&mut self) {
        if let Some(post) = self.post.take() {
            post.post(Finished { head: self.head, result: None });
        }
    }
}

impl<T> fmt::Debug for Token<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Token").field("head", &self.head).finish_non_exhaustive()
    }
}
