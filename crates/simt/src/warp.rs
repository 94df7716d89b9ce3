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
    pub lanes: [Lane; 32],
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
        for lane in lanes.iter_mut().take(count as usize) {
            *lane = Lane::Ready;
        }
        Self { lanes, last_pause: [None; 32], results: [0; 32] }
    }

    fn mask_of(&self, wanted: impl Fn(&Lane) -> bool) -> u32 {
        (0..32).filter(|&i| wanted(&self.lanes[i])).fold(0, |mask, i| mask | 1 << i)
    }

    /// Lanes that could run.
    pub(crate) fn ready(&self) -> u32 {
        self.mask_of(|lane| matches!(lane, Lane::Ready | Lane::Awake(_)))
    }

    /// Lets a lane arrive at a collective (not the block's barrier), and releases whom that completes.
    pub(crate) fn arrive(
        &mut self,
        lane: usize,
        collective: Collective,
    ) -> Result<Option<Released>, Broken> {
        self.lanes[lane] = Lane::Waiting(collective);
        self.last_pause[lane] = None;
        if collective.kind == CollectiveKind::ActiveMask {
            return Ok(None);
        }
        self.check(lane, &collective)?;
        let same = self.mask_of(|other| {
            matches!(other, Lane::Waiting(w)
                if w.kind == collective.kind && w.mask == collective.mask)
        });
        if same & collective.mask != collective.mask {
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
        let gone = self.mask_of(|other| matches!(other, Lane::Gone)) & mask;
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
            self.lanes[lane] = Lane::Ready;
        }
    }

    /// Releases the next group of lanes that wait for company at one place, when nobody else comes.
    pub(crate) fn converge(&mut self) -> Option<Released> {
        let here = |lane: &Lane| match lane {
            Lane::Waiting(w) if w.kind == CollectiveKind::ActiveMask => Some(w.site),
            _ => None,
        };
        let site = self.lanes.iter().find_map(here)?;
        let group = self.mask_of(|lane| here(lane) == Some(site));
        self.finish(CollectiveKind::ActiveMask, group);
        self.release(group);
        Some(Released { kind: CollectiveKind::ActiveMask, lanes: group })
    }

    /// Lets a lane return; an error where somebody waits for it.
    pub(crate) fn leave(&mut self, lane: usize) -> Result<(), Broken> {
        self.lanes[lane] = Lane::Gone;
        for (other, state) in self.lanes.iter().enumerate() {
            if let Lane::Waiting(w) = state
                && w.mask >> lane & 1 == 1
            {
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
