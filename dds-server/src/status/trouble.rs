//! When nothing can be written: slower, and said once.

use std::time::{Duration, Instant};

use rulecast_api::Code;

use super::planner::{Failure, Notice};

/// So many failures in a row, of whatever objects, are no object's own.
const PATTERN: u32 = 3;
/// The longest pause of everything.
const LONGEST_PAUSE: Duration = Duration::from_secs(10);
/// The longest time before an object is tried again.
const LONGEST_WAIT: Duration = Duration::from_secs(60);
/// The same where it is not the object's fault: everything pauses then anyway.
const LONGEST_WAIT_DOWN: Duration = Duration::from_secs(4);
/// Between notices.
const TELL: Duration = Duration::from_secs(60);

/// Failures so far.
#[derive(Debug, Default)]
pub(super) struct Trouble {
    reads: u32,
    writes: u32,
    pause: Option<Instant>,
    told: Option<Instant>,
    /// A failure was told, and no recovery since.
    open: bool,
    /// Objects that wait for a retry.
    objects: usize,
    notice: Option<Notice>,
}

/// Before an object is tried again after so many failures.
pub(super) fn wait(failures: u32, code: Code) -> Duration {
    let longest = if code == Code::StoreDown { LONGEST_WAIT_DOWN } else { LONGEST_WAIT };
    doubled(failures.saturating_sub(1)).min(longest)
}

fn doubled(times: u32) -> Duration {
    Duration::from_secs(1 << times.min(10))
}

impl Trouble {
    /// Until when nothing is tried.
    pub(super) fn pause(&self) -> Option<Instant> {
        self.pause
    }

    /// Whether one at a time is enough to see whether it works again.
    pub(super) fn probes(&self) -> bool {
        self.reads.max(self.writes) >= PATTERN
    }

    pub(super) fn take_notice(&mut self) -> Option<Notice> {
        self.notice.take()
    }

    /// A read or a write has failed, for the `failures`th time of its object.
    pub(super) fn failed(&mut self, now: Instant, write: bool, failures: u32, failure: Failure) {
        self.objects += usize::from(failures == 1);
        if matches!(failure.code, Code::StoreDown | Code::StoreForbidden) {
            let in_a_row = if write { &mut self.writes } else { &mut self.reads };
            *in_a_row = in_a_row.saturating_add(1);
            if let Some(more) = in_a_row.checked_sub(PATTERN) {
                self.pause = Some(now + doubled(more).min(LONGEST_PAUSE));
            }
        }
        // An object that is deleted meanwhile is nothing to speak of.
        let speaks = failure.code != Code::StoreConflict || failures >= PATTERN;
        if speaks && self.told.is_none_or(|told| told + TELL <= now) {
            self.told = Some(now);
            self.open = true;
            self.notice = Some(Notice::Failing { objects: self.objects, failure });
        }
    }

    /// Something worked. Whoever may read may not be one who may write.
    pub(super) fn worked(&mut self, write: bool) {
        self.reads = 0;
        if write {
            self.writes = 0;
            self.pause = None;
        }
    }

    /// An object that had failed works, or is gone.
    pub(super) fn relieved(&mut self) {
        self.objects = self.objects.saturating_sub(1);
        if self.objects == 0 && std::mem::take(&mut self.open) {
            self.notice = Some(Notice::Recovered);
        }
    }
}
