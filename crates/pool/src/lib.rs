//! Where bytes live: shards, bands, regions, placement and limits.
