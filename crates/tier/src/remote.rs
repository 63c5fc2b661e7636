//! Coded bytes as objects on a server, or files in a folder that stands for one.
//!
//! Objects lie under a random name of this store's own, so that stores never meet, and all that lies there is deleted
//! when the store is closed. The client is asynchronous; it runs on threads of the store, and callers wait for it.

use std::future::Future;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::{StreamExt as _, stream};
use object_store::local::LocalFileSystem;
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt as _};
use tokio::runtime::Runtime;
use tracing::warn;

use crate::budget::{Budget, Reserved};
use crate::medium::{Medium, Piece, ReadFailure, Trial};
use crate::seal::random_bytes;
use crate::{OpenError, RemoteConfig, TierError, TierKind};

const SEGMENT_BYTES: usize = 16 << 20;
const TRIAL_BYTES: usize = 1 << 20;
const TIER: TierKind = TierKind::Remote;

/// Objects deleted by one request, or by several at once, when the store is closed.
const BATCH: usize = 200;

/// How long is waited for a client that keeps no deadline itself.
const GRACE: Duration = Duration::from_secs(5);

/// The client and its objects.
pub(crate) struct RemoteMedium {
    shared: Arc<Shared>,
    budget: Arc<Budget>,
    next: AtomicU64,
}

struct Shared {
    client: Arc<dyn ObjectStore>,
    runtime: Option<Runtime>,
    /// All objects' names begin with this.
    folder: Path,
    timeout: Duration,
    /// Objects nobody holds any more that are still to be deleted, with the room they take.
    leftovers: Mutex<Vec<(Path, Option<Reserved>)>>,
}

/// An object of ours. Dropped, it becomes a leftover.
pub(crate) struct Object {
    path: Path,
    reserved: Option<Reserved>,
    shared: Arc<Shared>,
}

impl Drop for Object {
    fn drop(&mut self) {
        let path = std::mem::take(&mut self.path);
        self.shared.leave(path, self.reserved.take());
    }
}

impl RemoteMedium {
    /// Sets up the client and tries it with an object.
    pub(crate) fn open(config: &RemoteConfig) -> Result<(Self, Trial), OpenError> {
        let (client, prefix) = client(config)?;
        let run: [u8; 16] =
            random_bytes().map_err(|source| OpenError::NoRandomness { tier: TIER, source })?;
        let run = format!("vram-{:032x}", u128::from_le_bytes(run));
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .thread_name("tier-remote")
            .enable_all()
            .build()
            .map_err(OpenError::Runtime)?;
        let shared = Shared {
            client,
            runtime: Some(runtime),
            folder: Path::from_iter(prefix.parts().chain([run.into()])),
            timeout: config.timeout,
            leftovers: Mutex::default(),
        };
        let medium =
            Self { shared: Arc::new(shared), budget: Budget::new(config.bytes), next: AtomicU64::new(0) };
        let trial = medium
            .trial()
            .map_err(|source| OpenError::Trial { url: config.url.clone(), source: Box::new(source) })?;
        Ok((medium, trial))
    }

    fn trial(&self) -> Result<Trial, TierError> {
        let content: Vec<u8> = (0..=250u8).cycle().take(TRIAL_BYTES).collect();
        let path = self.path();
        let started = Instant::now();
        self.shared.put(path.clone(), content.clone())?;
        let write = started.elapsed();
        let mut found = vec![0; TRIAL_BYTES];
        let started = Instant::now();
        let result = self.shared.get(&path, 0, &mut found);
        let read = started.elapsed();
        self.shared.delete(path, None)?;
        match result {
            Ok(()) if found == content => Ok(Trial { bytes: TRIAL_BYTES, write, read }),
            Err(ReadFailure::Tier(error)) => Err(error),
            Ok(()) | Err(ReadFailure::Short) => {
                let source = std::io::ErrorKind::InvalidData.into();
                Err(TierError::Io { tier: TIER, action: "read what it wrote", source })
            }
        }
    }

    fn path(&self) -> Path {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        Path::from_iter(self.shared.folder.parts().chain([format!("{number:x}").into()]))
    }
}

impl Shared {
    /// Runs a request on the store's threads and waits for it, so that callers need no runtime of their own.
    fn run<T: Send + 'static>(
        &self,
        action: &'static str,
        request: impl Future<Output = object_store::Result<T>> + Send + 'static,
    ) -> Result<T, TierError> {
        let timeout = self.timeout;
        let waited_ms = u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX);
        let timed_out = || TierError::TimedOut { tier: TIER, action, waited_ms };
        let (sender, receiver) = sync_channel(1);
        let Some(runtime) = &self.runtime else { return Err(timed_out()) };
        runtime.spawn(async move {
            // A caller that has gone needs no answer.
            let _ = sender.send(tokio::time::timeout(timeout, request).await);
        });
        match receiver.recv_timeout(timeout.saturating_add(GRACE)) {
            Ok(Ok(Ok(value))) => Ok(value),
            Ok(Ok(Err(source))) => {
                Err(TierError::Unreachable { tier: TIER, action, source: Box::new(source) })
            }
            Ok(Err(_elapsed)) => Err(timed_out()),
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => Err(timed_out()),
        }
    }

    fn put(&self, path: Path, bytes: Vec<u8>) -> Result<(), TierError> {
        let client = Arc::clone(&self.client);
        self.run("store an object", async move { client.put(&path, bytes.into()).await.map(drop) })
    }

    fn get(&self, path: &Path, offset: usize, out: &mut [u8]) -> Result<(), ReadFailure> {
        let client = Arc::clone(&self.client);
        let path = path.clone();
        let range = offset as u64..(offset as u64).saturating_add(out.len() as u64);
        let found: Result<Bytes, TierError> =
            self.run("read an object", async move { client.get_range(&path, range).await });
        let found = match found {
            Ok(found) => found,
            // Somebody took it away: there are no bytes any more, and there will not be.
            Err(TierError::Unreachable { source, .. })
                if matches!(*source, object_store::Error::NotFound { .. }) =>
            {
                return Err(ReadFailure::Short);
            }
            Err(error) => return Err(error.into()),
        };
        if found.len() != out.len() {
            return Err(ReadFailure::Short);
        }
        out.copy_from_slice(&found);
        Ok(())
    }

    /// Deletes an object; if that fails it becomes a leftover. One that is not there is deleted.
    fn delete(&self, path: Path, reserved: Option<Reserved>) -> Result<(), TierError> {
        let client = Arc::clone(&self.client);
        let object = path.clone();
        let result = self.run("delete an object", async move {
            match client.delete(&object).await {
                Err(object_store::Error::NotFound { .. }) => Ok(()),
                other => other,
            }
        });
        if result.is_err() {
            self.leave(path, reserved);
        }
        result
    }

    fn leave(&self, path: Path, reserved: Option<Reserved>) {
        self.leftovers.lock().unwrap_or_else(PoisonError::into_inner).push((path, reserved));
    }

    /// Deletes leftovers, until one cannot be deleted.
    fn sweep(&self) -> Result<(), TierError> {
        loop {
            let leftover = self.leftovers.lock().unwrap_or_else(PoisonError::into_inner).pop();
            let Some((path, reserved)) = leftover else { return Ok(()) };
            self.delete(path, reserved)?;
        }
    }

    /// Deletes all objects of this store, whoever holds them.
    fn clear(&self) -> Result<(), TierError> {
        let (client, folder) = (Arc::clone(&self.client), self.folder.clone());
        let found = self.run("list its objects", async move {
            let mut objects = client.list(Some(&folder));
            let mut paths = Vec::new();
            while let Some(object) = objects.next().await {
                paths.push(object?.location);
            }
            Ok(paths)
        })?;
        self.leftovers.lock().unwrap_or_else(PoisonError::into_inner).clear();
        for batch in found.chunks(BATCH) {
            let client = Arc::clone(&self.client);
            let paths = stream::iter(batch.iter().cloned().map(Ok).collect::<Vec<_>>()).boxed();
            self.run("delete its objects", async move {
                let mut deleted = client.delete_stream(paths);
                while let Some(result) = deleted.next().await {
                    match result {
                        Ok(_) | Err(object_store::Error::NotFound { .. }) => {}
                        Err(error) => return Err(error),
                    }
                }
                Ok(())
            })?;
        }
        Ok(())
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        if let Err(error) = self.clear() {
            warn!(folder = %self.folder, %error, "objects of the remote tier may be left; delete them by hand");
        }
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

impl Medium for RemoteMedium {
    fn kind(&self) -> TierKind {
        TIER
    }

    fn unit_bytes(&self) -> usize {
        1
    }

    fn segment_bytes(&self) -> usize {
        SEGMENT_BYTES
    }

    fn write(&self, bytes: &[u8]) -> Result<Piece, TierError> {
        let needed_bytes = bytes.len() as u64;
        let full = |free_bytes| TierError::Full { tier: TIER, needed_bytes, free_bytes };
        let reserved = match self.budget.take(needed_bytes) {
            Ok(reserved) => reserved,
            Err(_) => {
                // What nobody holds any more may be what is in the way.
                self.shared.sweep()?;
                self.budget.take(needed_bytes).map_err(full)?
            }
        };
        let path = self.path();
        // Made first: if the server took the bytes and the answer was lost, they are deleted all the same.
        let object =
            Object { path: path.clone(), reserved: Some(reserved), shared: Arc::clone(&self.shared) };
        self.shared.put(path, bytes.to_vec())?;
        Ok(Piece::Object(object))
    }

    fn read(&self, piece: &Piece, offset: usize, out: &mut [u8]) -> Result<(), ReadFailure> {
        let Piece::Object(object) = piece else {
            return Err(TierError::ForeignHandle { tier: TIER }.into());
        };
        self.shared.get(&object.path, offset, out)
    }

    fn remove(&self, piece: Piece) -> Result<(), TierError> {
        // An object that is dropped becomes a leftover.
        drop(piece);
        self.shared.sweep()
    }

    fn stored_bytes(&self) -> u64 {
        self.budget.taken_bytes()
    }

    fn limit_bytes(&self) -> Option<u64> {
        self.budget.limit_bytes()
    }

    fn is_link(&self) -> bool {
        true
    }

    fn close(&self) -> Result<(), TierError> {
        self.shared.clear()
    }
}

/// A client for an address, and the prefix of names there.
fn client(config: &RemoteConfig) -> Result<(Arc<dyn ObjectStore>, Path), OpenError> {
    let url = &config.url;
    let bad = |problem| OpenError::BadUrl { url: url.clone(), problem };
    let Some((scheme, rest)) = url.split_once("://") else { return Err(bad("no address")) };
    match scheme {
        "file" => {
            let folder = PathBuf::from(rest);
            if !folder.is_absolute() {
                return Err(bad("no absolute path"));
            }
            let client = LocalFileSystem::new_with_prefix(&folder)
                .map_err(|source| OpenError::Client { url: url.clone(), source: Box::new(source) })?;
            Ok((Arc::new(client.with_automatic_cleanup(true)), Path::default()))
        }
        "s3" => {
            let (bucket, prefix) = rest.split_once('/').unwrap_or((rest, ""));
            if bucket.is_empty() {
                return Err(bad("without a bucket"));
            }
            let prefix = Path::parse(prefix.trim_end_matches('/'))
                .map_err(|source| OpenError::BadPrefix { url: url.clone(), source })?;
            Ok((s3(config, bucket)?, prefix))
        }
        _ => Err(bad("of no kind this daemon knows")),
    }
}

#[cfg(feature = "s3")]
fn s3(config: &RemoteConfig, bucket: &str) -> Result<Arc<dyn ObjectStore>, OpenError> {
    use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey};

    let refused = |source| OpenError::Client {
        url: config.url.clone(),
        source: Box::<object_store::Error>::new(source),
    };
    // Refused only if the process has chosen one already, which will do.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let retry = object_store::RetryConfig { retry_timeout: config.timeout, ..Default::default() };
    // Objects are deleted one by one, and not every server knows requests that delete many.
    let bulk = AmazonS3ConfigKey::DisableBulkDelete;
    let builder = AmazonS3Builder::new().with_bucket_name(bucket).with_retry(retry);
    let mut builder = builder.with_config(bulk, "true");
    for (name, value) in &config.options {
        let key: AmazonS3ConfigKey = name.parse().map_err(refused)?;
        builder = builder.with_config(key, value);
    }
    Ok(Arc::new(builder.build().map_err(refused)?))
}

#[cfg(not(feature = "s3"))]
fn s3(config: &RemoteConfig, _bucket: &str) -> Result<Arc<dyn ObjectStore>, OpenError> {
    Err(OpenError::WithoutS3 { url: config.url.clone() })
}
