//! Threads.

use std::thread::{Builder, JoinHandle, Thread};

use crate::SpawnError;
use crate::outcome::{Outcome, Panic, contain};

/// A thread started by [`spawn_named`] or [`spawn_supervised`].
///
/// Dropping it does not end the thread, and nothing is lost by it but the outcome: a panic is in the log all the same.
#[derive(Debug)]
pub struct Worker<T> {
    name: String,
    handle: JoinHandle<Outcome<T>>,
}

impl<T> Worker<T> {
    /// The whole name, of which the kernel shows the first 15 bytes.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The thread, to unpark it.
    pub fn thread(&self) -> &Thread {
        self.handle.thread()
    }

    /// Whether the work has ended, so that [`Worker::join`] would not wait for it.
    pub fn is_finished(&self) -> bool {
        self.handle.is_finished()
    }

    /// Waits for the end of the thread. The caller has told it to end, by whatever means they agreed on.
    pub fn join(self) -> Outcome<T> {
        let Self { name, handle } = self;
        match handle.join() {
            Ok(outcome) => outcome,
            // The work's own panics are contained; this one came from dropping what the thread owned.
            Err(payload) => match contain(&name, || std::panic::resume_unwind(payload)) {
                Outcome::Returned(never) => never,
                Outcome::Panicked(panic) => Outcome::Panicked(panic),
            },
        }
    }
}

/// Starts a thread of this name. If the work panics, the log says so and [`Worker::join`] returns the panic.
pub fn spawn_named<T, F>(name: impl Into<String>, work: F) -> Result<Worker<T>, SpawnError>
where
    T: Send + 'static,
    F: FnOnce() -> T + Send + 'static,
{
    spawn_supervised(name, work, |_: Option<&Panic>| {})
}

/// Like [`spawn_named`], and when the work has ended the thread calls `on_end`, with the panic if it was one. That is
/// the place to close what belonged to the work, so that nobody waits for it for ever. A panic in `on_end` is
/// contained and logged as well.
pub fn spawn_supervised<T, F, E>(name: impl Into<String>, work: F, on_end: E) -> Result<Worker<T>, SpawnError>
where
    T: Send + 'static,
    F: FnOnce() -> T + Send + 'static,
    E: FnOnce(Option<&Panic>) + Send + 'static,
{
    let name = name.into();
    if name.is_empty() || name.contains('\0') {
        return Err(SpawnError::BadName { name });
    }
    let work_name = name.clone();
    let run = move || {
        let outcome = contain(&work_name, work);
        let panic = match &outcome {
            Outcome::Returned(_) => None,
            Outcome::Panicked(panic) => Some(panic),
        };
        match contain(&work_name, || on_end(panic)) {
            Outcome::Returned(()) | Outcome::Panicked(_) => outcome,
        }
    };
    match Builder::new().name(name.clone()).spawn(run) {
        Ok(handle) => Ok(Worker { name, handle }),
        Err(source) => Err(SpawnError::Thread { name, source }),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::thread;
    use std::time::Duration;

    use super::*;

    #[test]
    fn spawn_named_gives_the_name_and_the_value() {
        let worker =
            spawn_named("vram-test-with-a-long-name", || thread::current().name().map(str::to_owned))
                .unwrap();

        assert_eq!(worker.name(), "vram-test-with-a-long-name");
        assert_eq!(worker.join(), Outcome::Returned(Some("vram-test-with-a-long-name".into())));
    }

    #[test]
    fn spawn_named_panic_is_an_outcome() {
        let worker = spawn_named("w", || -> u32 { panic!("boom") }).unwrap();

        let panic = Panic { work: "w".into(), message: "boom".into() };
        assert_eq!(worker.join(), Outcome::Panicked(panic));
    }

    #[test]
    fn spawn_named_bad_names_are_refused() {
        for name in ["", "a\0b"] {
            assert!(matches!(spawn_named(name, || ()), Err(SpawnError::BadName { .. })), "{name:?}");
        }
    }

    #[test]
    fn spawn_supervised_tells_the_end_even_when_nobody_joins() {
        for panics in [false, true] {
            let (ended, end) = mpsc::channel();
            let work = move || assert!(!panics, "told to");
            let on_end = move |panic: Option<&Panic>| ended.send(panic.cloned()).unwrap();

            drop(spawn_supervised("w", work, on_end).unwrap());

            let panic = end.recv_timeout(Duration::from_secs(10)).unwrap();
            assert_eq!(panic.map(|panic| panic.message), panics.then(|| "told to".into()));
        }
    }

    #[test]
    fn spawn_supervised_panic_in_the_callback_keeps_the_value() {
        let worker = spawn_supervised("w", || 5, |_| panic!("in the callback")).unwrap();

        assert_eq!(worker.join(), Outcome::Returned(5));
    }

    #[test]
    fn spawn_named_panic_in_a_destructor_is_an_outcome() {
        struct Bomb;
        impl Drop for Bomb {
            fn drop(&mut self) {
                panic!("dropped");
            }
        }
        let bomb = Bomb;

        let worker = spawn_named("w", move || {
            let _bomb = bomb;
            3
        })
        .unwrap();

        assert!(worker.join().is_panic());
    }
}
