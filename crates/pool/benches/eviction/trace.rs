//! Access patterns: the same trace each time.

/// Regions of the GPU memory the patterns are scaled to.
pub(crate) const MEMORY: u32 = 64;
/// MiB of a region.
pub(crate) const REGION_MIB: u64 = 64;
/// Length of a trace, in times the GPU memory.
const FILLS: u64 = 48;

/// A part of one region is read or written.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Access {
    pub(crate) region: u32,
    pub(crate) mib: u64,
    pub(crate) write: bool,
}

/// A pattern over so many regions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pattern {
    /// All regions in order, again and again, in reads of 1 MiB.
    Cycle,
    /// Half of the memory's worth is hot, at random, 4 MiB each; now and then all is read in order.
    HotAndScan,
    /// Any region, all of it.
    UniformWhole,
    /// Any region, 4 MiB of it.
    UniformPart,
    /// Few regions often, many seldom (exponent 0.9), all of it.
    ZipfWhole,
    /// The same, 4 MiB of it.
    ZipfPart,
    /// Half of the memory's worth is hot, and every 12 fills another half.
    Phases,
    /// A quarter of the memory's worth is hot, and moves on region by region.
    Window,
    /// Weights are read in order each step, and a growing cache after them.
    Model,
}

impl Pattern {
    pub(crate) const ALL: [Self; 9] = [
        Self::Cycle,
        Self::HotAndScan,
        Self::UniformWhole,
        Self::UniformPart,
        Self::ZipfWhole,
        Self::ZipfPart,
        Self::Phases,
        Self::Window,
        Self::Model,
    ];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Cycle => "cycle",
            Self::HotAndScan => "hot+scan",
            Self::UniformWhole => "uniform 64M",
            Self::UniformPart => "uniform 4M",
            Self::ZipfWhole => "zipf 64M",
            Self::ZipfPart => "zipf 4M",
            Self::Phases => "phases",
            Self::Window => "window",
            Self::Model => "model",
        }
    }

    /// The accesses, over a number of regions.
    pub(crate) fn trace(self, regions: u32) -> Vec<Access> {
        let mut trace = Trace { accesses: Vec::new(), mib: 0, random: Random::new() };
        match self {
            Self::Cycle => trace.cycle(regions),
            Self::HotAndScan => trace.hot_and_scan(regions),
            Self::UniformWhole => trace.uniform(regions, REGION_MIB),
            Self::UniformPart => trace.uniform(regions, 4),
            Self::ZipfWhole => trace.zipf(regions, REGION_MIB),
            Self::ZipfPart => trace.zipf(regions, 4),
            Self::Phases => trace.phases(regions),
            Self::Window => trace.window(regions),
            Self::Model => trace.model(regions),
        }
        trace.accesses
    }
}

/// Accesses to one region that follow each other, as one.
pub(crate) fn visits(trace: &[Access]) -> Vec<Access> {
    let mut visits: Vec<Access> = Vec::new();
    for &access in trace {
        match visits.last_mut() {
            Some(visit) if visit.region == access.region => {
                visit.mib += access.mib;
                visit.write |= access.write;
            }
            _ => visits.push(access),
        }
    }
    visits
}

/// A small generator of random numbers (xorshift64*).
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new() -> Self {
        Self(0x9e37_79b9_7f4a_7c15)
    }

    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) % bound
    }
}

struct Trace {
    accesses: Vec<Access>,
    mib: u64,
    random: Random,
}

impl Trace {
    fn fills(&self) -> u64 {
        self.mib / (u64::from(MEMORY) * REGION_MIB)
    }

    fn is_short(&self) -> bool {
        self.fills() < FILLS
    }

    fn access(&mut self, region: u32, mib: u64, write: bool) {
        self.mib += mib;
        self.accesses.push(Access { region, mib, write });
    }

    /// Three in ten accesses at random are writes.
    fn at_random(&mut self, region: u32, mib: u64) {
        let write = self.random.below(10) < 3;
        self.access(region, mib, write);
    }

    fn scan(&mut self, regions: std::ops::Range<u32>) {
        for region in regions {
            (0..REGION_MIB).for_each(|_| self.access(region, 1, false));
        }
    }

    fn cycle(&mut self, regions: u32) {
        while self.is_short() {
            self.scan(0..regions);
        }
    }

    fn hot_and_scan(&mut self, regions: u32) {
        let hot = u64::from(MEMORY.min(regions) / 2);
        // The hot set lies at the end, where nothing is resident at first.
        let first = regions - hot as u32;
        while self.is_short() {
            for _ in 0..2 * u64::from(regions) * REGION_MIB / 4 {
                let region = first + self.random.below(hot) as u32;
                self.at_random(region, 4);
            }
            self.scan(0..regions);
        }
    }

    fn uniform(&mut self, regions: u32, mib: u64) {
        while self.is_short() {
            let region = self.random.below(u64::from(regions)) as u32;
            self.at_random(region, mib);
        }
    }

    fn zipf(&mut self, regions: u32, mib: u64) {
        let mut total = 0.0;
        let sums: Vec<f64> = (1..=regions)
            .map(|rank| {
                total += f64::from(rank).powf(-0.9);
                total
            })
            .collect();
        while self.is_short() {
            let drawn = self.random.below(1 << 30) as f64 / (1u64 << 30) as f64 * total;
            let rank = sums.partition_point(|&sum| sum <= drawn) as u32;
            // Ranks are spread over the regions, so that what is resident at first says nothing.
            self.at_random((rank * 37 + 11) % regions, mib);
        }
    }

    fn phases(&mut self, regions: u32) {
        let hot = u64::from(MEMORY.min(regions) / 2);
        while self.is_short() {
            let first = self.fills() / 12 * hot * 3 / 2;
            let any = self.random.below(10) == 0;
            let drawn = self.random.below(if any { u64::from(regions) } else { hot });
            self.at_random(((first + drawn) % u64::from(regions)) as u32, 4);
        }
    }

    fn window(&mut self, regions: u32) {
        let width = u64::from(MEMORY / 4);
        while self.is_short() {
            // A region is in the window for 8 passes of its bytes.
            let first = self.mib / (8 * REGION_MIB);
            let region = (first + self.random.below(width)) % u64::from(regions);
            self.at_random(region as u32, 4);
        }
    }

    fn model(&mut self, regions: u32) {
        let weights = regions * 7 / 10;
        let mut cached = u64::from(weights) * REGION_MIB;
        let full = u64::from(regions) * REGION_MIB;
        while self.is_short() {
            self.scan(0..weights);
            // A step adds 32 MiB to the cache; a full cache starts anew.
            cached = if cached + 32 > full { u64::from(weights) * REGION_MIB } else { cached };
            for _ in 0..32 {
                self.access((cached / REGION_MIB) as u32, 1, true);
                cached += 1;
            }
            let read = u64::from(weights) * REGION_MIB..cached;
            read.for_each(|mib| self.access((mib / REGION_MIB) as u32, 1, false));
        }
    }
}
