//! Features: Set Features and Get Features.
//!
//! | feature | set |
//! | --- | --- |
//! | arbitration, error recovery, interrupt coalescing | kept and returned, no more |
//! | interrupt vector, write atomicity | kept and returned, no more |
//! | event configuration | health events are sent where it asks for them |
//! | temperature threshold | over and under, of the composite temperature |
//! | power management | power state 0 only |
//! | volatile write cache | on only |
//! | number of queues | before the first I/O queue is created |
//!
//! Nothing is saveable or specific to a namespace.
//!
//! Source: NVMe Base Specification 2.0c, 5.15 and 5.27.

use spec::Status;
use spec::admin::{Feature, GetFeatures, QueueCounts, SetFeatures};

/// Capability bit: the value can be changed. Source: 5.15.1, figure of dword 0 for select 3.
const CHANGEABLE: u32 = 1 << 2;

/// Features whose dword is kept and returned.
const KEPT: [u8; 6] = [
    Feature::ARBITRATION,
    Feature::ERROR_RECOVERY,
    Feature::INTERRUPT_COALESCING,
    Feature::INTERRUPT_VECTOR,
    Feature::WRITE_ATOMICITY,
    Feature::ASYNC_EVENT_CONFIGURATION,
];

/// Temperature thresholds after a reset, over and under.
const THRESHOLDS: [u16; 2] = [343, 0];

/// The features' values.
#[derive(Debug)]
pub(crate) struct Features {
    kept: [u32; KEPT.len()],
    /// Kelvin from which on it is too warm, and down to which it is too cold.
    thresholds: [u16; 2],
    queue_pairs_max: u16,
    /// I/O submission and completion queues that may be created.
    pub(crate) queues: (u16, u16),
}

impl Features {
    pub(crate) fn new(queue_pairs_max: u16) -> Self {
        Self {
            kept: [0; KEPT.len()],
            thresholds: THRESHOLDS,
            queue_pairs_max,
            queues: (queue_pairs_max, queue_pairs_max),
        }
    }

    /// Whether a temperature is outside what the host set.
    pub(crate) fn is_beyond_threshold(&self, kelvin: u16) -> bool {
        kelvin >= self.thresholds[0] || kelvin <= self.thresholds[1]
    }

    /// Whether the host asked for events of this bit of the event configuration.
    pub(crate) fn wants_event(&self, bit: u32) -> bool {
        let at = KEPT.iter().position(|feature| *feature == Feature::ASYNC_EVENT_CONFIGURATION);
        at.is_some_and(|at| self.kept[at] >> bit & 1 != 0)
    }

    /// Which threshold a command's dword 11 means. Source: 5.27.1.3.
    fn threshold(value: u32) -> Result<usize, Status> {
        let (sensor, kind) = (value >> 16 & 0xf, value >> 20 & 3);
        // Only the composite temperature is there; a setting may mean all sensors.
        let known = (sensor == 0 || sensor == 0xf) && kind < 2;
        if known { Ok(usize::from(kind == 1)) } else { Err(Status::INVALID_FIELD) }
    }

    fn queue_counts(queues: (u16, u16)) -> u32 {
        QueueCounts { submission_z: queues.0 - 1, completion_z: queues.1 - 1 }.encode()
    }

    /// Get Features: the value for dword 0.
    pub(crate) fn read(&self, get: GetFeatures) -> Result<u32, Status> {
        let default = get.select != GetFeatures::SELECT_CURRENT;
        let kept = KEPT.iter().position(|feature| *feature == get.feature);
        let value = match (get.feature, kept) {
            (_, Some(at)) => {
                if default {
                    0
                } else {
                    self.kept[at]
                }
            }
            (Feature::POWER_MANAGEMENT, _) => 0,
            (Feature::TEMPERATURE_THRESHOLD, _) => {
                let at = Self::threshold(get.value)?;
                u32::from(if default { THRESHOLDS[at] } else { self.thresholds[at] })
            }
            (Feature::VOLATILE_WRITE_CACHE, _) => 1,
            (Feature::QUEUE_COUNT, _) if default => {
                Self::queue_counts((self.queue_pairs_max, self.queue_pairs_max))
            }
            (Feature::QUEUE_COUNT, _) => Self::queue_counts(self.queues),
            _ => return Err(Status::INVALID_FIELD),
        };
        match get.select {
            GetFeatures::SELECT_CAPABILITIES => Ok(CHANGEABLE),
            0..=2 => Ok(value),
            _ => Err(Status::INVALID_FIELD),
        }
    }

    /// Set Features: the value for dword 0. `queues_exist` says whether I/O queues were created.
    pub(crate) fn write(&mut self, set: SetFeatures, queues_exist: bool) -> Result<u32, Status> {
        let kept = KEPT.iter().position(|feature| *feature == set.feature);
        let known = [
            Feature::POWER_MANAGEMENT,
            Feature::TEMPERATURE_THRESHOLD,
            Feature::VOLATILE_WRITE_CACHE,
            Feature::QUEUE_COUNT,
        ];
        if kept.is_none() && !known.contains(&set.feature) {
            return Err(Status::INVALID_FIELD);
        }
        if set.save {
            return Err(Status::FEATURE_NOT_SAVEABLE);
        }
        match (set.feature, kept) {
            (_, Some(at)) => self.kept[at] = set.value,
            (Feature::TEMPERATURE_THRESHOLD, _) => {
                let kelvin = u16::try_from(set.value & 0xffff).expect("masked");
                self.thresholds[Self::threshold(set.value)?] = kelvin;
            }
            (Feature::POWER_MANAGEMENT, _) if set.value & 0x1f != 0 => {
                return Err(Status::INVALID_FIELD);
            }
            (Feature::VOLATILE_WRITE_CACHE, _) if set.value & 1 == 0 => {
                return Err(Status::FEATURE_NOT_CHANGEABLE);
            }
            (Feature::QUEUE_COUNT, _) => return self.write_queue_count(set.value, queues_exist),
            _ => {}
        }
        Ok(0)
    }

    fn write_queue_count(&mut self, value: u32, queues_exist: bool) -> Result<u32, Status> {
        let wanted = QueueCounts::decode(value);
        if wanted.submission_z == u16::MAX || wanted.completion_z == u16::MAX {
            return Err(Status::INVALID_FIELD);
        }
        if queues_exist {
            return Err(Status::COMMAND_SEQUENCE_ERROR);
        }
        let grant = |wanted_z: u16| (wanted_z + 1).min(self.queue_pairs_max);
        self.queues = (grant(wanted.submission_z), grant(wanted.completion_z));
        Ok(Self::queue_counts(self.queues))
    }
}
