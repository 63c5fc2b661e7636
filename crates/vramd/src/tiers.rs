//! The stores of the tiers: opened before anything is served, closed when nothing is any more.

use std::sync::Arc;

use anyhow::Result;
use tracing::{error, info, warn};
use vram_control_api::ByteSize;
use vram_residency::Tier;
use vram_tier::{ChunkedStore, HostConfig, HostStore, Store};

use crate::config::TierConfig;

/// Stores that are open. Dropping them closes them, the slowest first; errors are logged.
pub(crate) struct OpenTiers {
    tiers: Vec<Tier>,
}

impl OpenTiers {
    /// Opens them in their order. If one cannot be opened, those before it are closed.
    pub(crate) fn open(configs: &[TierConfig]) -> Result<Self> {
        let mut open = Self { tiers: Vec::new() };
        for config in configs {
            open.tiers.push(open_one(config)?);
        }
        Ok(open)
    }

    /// The tiers, for who moves memory to them.
    pub(crate) fn tiers(&self) -> Vec<Tier> {
        self.tiers.clone()
    }
}

impl Drop for OpenTiers {
    fn drop(&mut self) {
        for tier in self.tiers.iter().rev() {
            let store = store(tier);
            if let Err(error) = store.close() {
                let error = anyhow::Error::new(error);
                error!(tier = %store.kind(), error = format!("{error:#}"), "the tier cannot be closed; it may have left something behind");
            }
        }
    }
}

fn store(tier: &Tier) -> &dyn Store {
    match tier {
        Tier::Host(store) => store.as_ref(),
        Tier::Chunked(store) => store.as_ref(),
    }
}

fn open_one(config: &TierConfig) -> Result<Tier> {
    let tier = match config {
        TierConfig::Host(config) => {
            remark_on_size(config);
            Tier::Host(Arc::new(HostStore::open(config)?))
        }
        TierConfig::Chunked(config) => Tier::Chunked(Arc::new(ChunkedStore::open(config)?)),
    };
    let size = store(&tier).meter().limit_bytes;
    let size = size.map_or_else(|| "unlimited".to_owned(), |bytes| ByteSize(bytes).to_string());
    let place = match config {
        TierConfig::Host(_) | TierConfig::Chunked(vram_tier::TierConfig::Compressed(_)) => {
            "memory".to_owned()
        }
        TierConfig::Chunked(vram_tier::TierConfig::Disk(disk)) => disk.dir.display().to_string(),
        TierConfig::Chunked(vram_tier::TierConfig::Remote(remote)) => remote.url.clone(),
    };
    info!(tier = %config.kind(), size, place, "tier ready");
    Ok(tier)
}

/// Says what of the size is left unused.
fn remark_on_size(config: &HostConfig) {
    let rest = ByteSize(config.bytes.checked_rem(config.slot_bytes).unwrap_or_default());
    if rest > ByteSize(0) {
        let shard = ByteSize(config.slot_bytes);
        warn!(%rest, %shard, "the host tier's size is rounded down to whole shards");
    }
}
