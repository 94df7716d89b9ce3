//! One warp's lanes and their collectives: who waits for whom, and what each gets.
//!
//! A collective is over when every lane of its mask waits in the same function with the same mask.
//! Different masks may wait side by side. Misuse is found when a lane arrives or returns; what can
//! never end otherwise is left to the block's deadlock check.

use crate::device::{Site, StaticText};
use crate::report::{LaunchError, Place};

/// What a lane may wait in. Mirrors the codes in `impl/arch_simt.h`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum CollectiveKind {
    Ballot,
    Shuffle,
    MatchAny,
    SyncWarp,
    ActiveMask,
    SyncThreads,
}

impl CollectiveKind {
    pub(crate) fn from_code(code: u32) -> Self {
        match code {
            0 => Self::Ballot,
            1 => Self::Shuffle,
            2 => Self::MatchAny,
            3 => Self::SyncWarp,
            4 => Self::ActiveMask,
            _ => Self::SyncThreads,
        }
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Ballot => "ballot",
            Self::Shuffle => "shuffle",
            Self::MatchAny => "match_any",
            Self::SyncWarp => "sync_warp",
            Self::ActiveMask => "active_mask",
            Self::SyncThreads => "sync_threads",
        }
    }
}

/// One lane's part in a collective.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Collective {
    pub kind: CollectiveKind,
    pub mask: u32,
    pub value: u64,
    pub source: u32,
    pub site: Site,
}

/// What a lane does now.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Lane {
    /// Runs, or could.
    Ready,
    /// In a pause.
    Asleep(StaticText),
    /// At the end of a pause: ready, but has not run yet.
    Awake(StaticText),
    /// In a collective.
    Waiting(Collective),
    /// Has returned, or was never there.
    Gone,
}

/// Lanes that a collective released, by their bits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Released {
    pub kind: CollectiveKind,
    pub lanes: u32,
}

/// A broken collective, before it knows its block and warp.
#[derive(Debug)]
pub(crate) struct Broken {
    pub lane: u32,
    pub site: Site,
    pub why: String,
}

/// The lanes of one warp.
#[derive(Debug)]
pub(crate) struct Warp {
    lanes: [Lane; 32],
    /// Lanes that could run, those that wait, and those that are gone; the rest sleep.
    ready: u32,
    waiting: u32,
    gone: u32,
    /// What each lane last paused for, since it last met others.
    pub last_pause: [Option<StaticText>; 32],
    /// What each lane's last collective returned.
    pub results: [u64; 32],
}

/// The set bits of a mask.
pub(crate) fn bits(mut mask: u32) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let lane = mask.trailing_zeros();
        mask &= mask.wrapping_sub(1);
        (lane < 32).then_some(lane as usize)
    })
}

impl Warp {
    /// A warp of `count` lanes, all ready.
    pub(crate) fn new(count: u32) -> Self {
        let mut lanes = [Lane::Gone; 32];
        lanes[..count as usize].fill(Lane::Ready);
        let ready = u32::MAX >> (32 - count);
        let (last_pause, results) = ([None; 32], [0; 32]);
        Self { lanes, ready, waiting: 0, gone: !ready, last_pause, results }
    }

    /// Says what a lane does now.
    pub(crate) fn set(&mut self, lane: usize, state: Lane) {
        let bit = 1 << lane;
        self.lanes[lane] = state;
        self.ready &= !bit;
        self.waiting &= !bit;
        match state {
            Lane::Ready | Lane::Awake(_) => self.ready |= bit,
            Lane::Waiting(_) => self.waiting |= bit,
            Lane::Gone => self.gone |= bit,
            Lane::Asleep(_) => {}
        }
    }

    /// What a lane does now.
    pub(crate) fn lane(&self, lane: usize) -> &Lane {
        &self.lanes[lane]
    }

    /// Lanes that wait in such a call.
    pub(crate) fn waiting_in(&self, wanted: impl Fn(&Collective) -> bool) -> u32 {
        bits(self.waiting).filter(|&i| wanted(self.waiting(i))).fold(0, |mask, i| mask | 1 << i)
    }

    /// Lanes that could run.
    pub(crate) fn ready(&self) -> u32 {
        self.ready
    }

    /// Lets a lane arrive at a collective (not the block's barrier), and releases whom that completes.
    pub(crate) fn arrive(
        &mut self,
        lane: usize,
        collective: Collective,
    ) -> Result<Option<Released>, Broken> {
        self.set(lane, Lane::Waiting(collective));
        self.last_pause[lane] = None;
        let Collective { kind, mask, .. } = collective;
        if kind == CollectiveKind::ActiveMask {
            return Ok(None);
        }
        self.check(lane, &collective)?;
        if self.waiting & mask != mask {
            return Ok(None);
        }
        let same = self.waiting_in(|other| other.kind == kind && other.mask == mask);
        if same & mask != mask {
            return Ok(None);
        }
        self.finish(collective.kind, collective.mask);
        self.release(collective.mask);
        Ok(Some(Released { kind: collective.kind, lanes: collective.mask }))
    }

    fn check(&self, lane: usize, collective: &Collective) -> Result<(), Broken> {
        let Collective { kind, mask, source, site, .. } = *collective;
        let name = kind.name();
        let broken =
            |why| Err(Broken { lane: u32::try_from(lane).expect("a lane of 32"), site, why });
        if mask >> lane & 1 == 0 {
            return broken(format!("{name} with mask {mask:#010x}, which lacks the caller"));
        }
        let gone = self.gone & mask;
        if gone != 0 {
            return broken(format!(
                "{name} with mask {mask:#010x} names lanes {gone:#010x} that have returned or never were"
            ));
        }
        if kind == CollectiveKind::Shuffle && (source >= 32 || mask >> source & 1 == 0) {
            return broken(format!(
                "shuffle from lane {source}, which is not in mask {mask:#010x}"
            ));
        }
        Ok(())
    }

    fn waiting(&self, lane: usize) -> &Collective {
        match &self.lanes[lane] {
            Lane::Waiting(collective) => collective,
            other => unreachable!("a participant waits, not {other:?}"),
        }
    }

    fn finish(&mut self, kind: CollectiveKind, mask: u32) {
        let values: [u64; 32] =
            std::array::from_fn(|i| if mask >> i & 1 == 1 { self.waiting(i).value } else { 0 });
        let ballot = bits(mask).filter(|&i| values[i] != 0).fold(0u32, |m, i| m | 1 << i);
        for lane in bits(mask) {
            self.results[lane] = match kind {
                CollectiveKind::Ballot => u64::from(ballot),
                CollectiveKind::Shuffle => values[self.waiting(lane).source as usize],
                CollectiveKind::MatchAny => {
                    bits(mask).filter(|&i| values[i] == values[lane]).fold(0, |m, i| m | 1 << i)
                }
                CollectiveKind::ActiveMask => u64::from(mask),
                CollectiveKind::SyncWarp | CollectiveKind::SyncThreads => 0,
            };
        }
    }

    pub(crate) fn release(&mut self, mask: u32) {
        for lane in bits(mask) {
            self.set(lane, Lane::Ready);
        }
    }

    /// Releases the next group of lanes that wait for company at one place, when nobody else comes.
    pub(crate) fn converge(&mut self) -> Option<Released> {
        let here = self.waiting_in(|w| w.kind == CollectiveKind::ActiveMask);
        let site = self.waiting(bits(here).next()?).site;
        let group = self.waiting_in(|w| w.kind == CollectiveKind::ActiveMask && w.site == site);
        self.finish(CollectiveKind::ActiveMask, group);
        self.release(group);
        Some(Released { kind: CollectiveKind::ActiveMask, lanes: group })
    }

    /// Lets a lane return; an error where somebody waits for it.
    pub(crate) fn leave(&mut self, lane: usize) -> Result<(), Broken> {
        self.set(lane, Lane::Gone);
        for other in bits(self.waiting) {
            let w = self.waiting(other);
            if w.mask >> lane & 1 == 1 {
                let (name, mask) = (w.kind.name(), w.mask);
                let other = u32::try_from(other).expect("a lane of 32");
                let why = format!(
                    "{name} with mask {mask:#010x} waits for lane {lane}, which has returned"
                );
                return Err(Broken { lane: other, site: w.site, why });
            }
        }
        Ok(())
    }

    /// Where a lane waits, for reports; `None` when it has returned.
    pub(crate) fn place(&self, lane: usize) -> Option<Place> {
        match self.lanes[lane] {
            Lane::Ready => {
                Some(Place::Running { after: self.last_pause[lane].map(StaticText::to_text) })
            }
            Lane::Asleep(site) | Lane::Awake(site) => Some(Place::Pause { site: site.to_text() }),
            Lane::Waiting(w) => Some(Place::Collective {
                function: w.kind.name(),
                mask: w.mask,
                file: w.site.file.to_text(),
                line: w.site.line,
            }),
            Lane::Gone => None,
        }
    }
}

impl Broken {
    pub(crate) fn into_error(self, block: u32, warp: u32) -> LaunchError {
        LaunchError::Misuse {
            block,
            warp,
            lane: self.lane,
            file: self.site.file.to_text(),
            line: self.site.line,
            why: self.why,
        }
    }
}
