//! Runs a candidate against the API server.

use std::time::Duration;

use tokio::time::{Instant, sleep_until, timeout_at};
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use super::{
    ElectionConfig, Leadership,
    candidate::{Action, Candidate, Claim, Times, Written},
    leadership::Teller,
    lease::Leases,
};

/// The longest `duration`.
const LONGEST: Duration = Duration::from_secs(3600);

/// Runs for leader until `shutdown`; spawn the future. Dropping it ends the lead too, but leaves
/// the Lease to run out.
///
/// Needs `get`, `create` and `update` on `leases` of `coordination.k8s.io` in the namespace.
///
/// A Lease that is deleted is made anew. Its holder leads on; another one that makes it first
/// leads only after `duration`, when the holder knows. (A candidate that starts just then cannot
/// know that there was a Lease: it can lead beside the holder until that one's next renewal.)
///
/// Times that make no sense are mended, with a warning: `duration` to whole seconds from 1 s to
/// 1 hour, `deadline` to at most two thirds of it where it is no less than `duration`, `retry` to
/// at most a third of `deadline`.
pub fn campaign(
    client: kube::Client,
    config: ElectionConfig,
    shutdown: CancellationToken,
) -> (Leadership, impl Future<Output = ()> + Send + 'static) {
    let (teller, leadership) = Teller::new();
    let times = times(&config);
    let task = async move {
        let leases = Leases::new(client, &config.namespace, &config.name);
        let candidate =
            Candidate::new(config.identity.clone(), times, fastrand::u64(..), Instant::now());
        Runner { leases, candidate, teller, times, config, failing: false }.run(shutdown).await;
    };
    (leadership, task)
}

fn times(config: &ElectionConfig) -> Times {
    let second = Duration::from_secs(1);
    let duration = Duration::from_secs(config.duration.as_secs()).clamp(second, LONGEST);
    let deadline =
        if config.deadline < duration { config.deadline } else { duration.mul_f64(2.0 / 3.0) };
    let deadline = deadline.max(Duration::from_millis(100));
    let retry = config.retry.clamp(Duration::from_millis(10), deadline / 3);
    let times = Times { duration, deadline, retry };
    let given = (config.duration, config.deadline, config.retry);
    if (duration, deadline, retry) != given {
        warn!(?given, used = ?times, "mend the times of the election");
    }
    times
}

struct Runner {
    leases: Leases,
    candidate: Candidate,
    teller: Teller,
    times: Times,
    config: ElectionConfig,
    /// Whether the last call failed; the first failure is said aloud.
    failing: bool,
}

impl Runner {
    async fn run(mut self, shutdown: CancellationToken) {
        // A write that was cut may have been carried out.
        let mut unsure = false;
        while !shutdown.is_cancelled() {
            self.tell();
            match self.candidate.next(Instant::now()) {
                Action::Wait(at) => self.wait(at, &shutdown).await,
                Action::Read => self.read(&shutdown).await,
                Action::Write(claim) => unsure = !self.write(claim, &shutdown).await,
            }
        }
        self.release(unsure).await;
    }

    /// Tells the lead as the candidate has it.
    fn tell(&mut self) {
        let now = Instant::now();
        match self.candidate.leads_until().filter(|until| now < *until) {
            Some(until) => {
                if self.teller.leads(until) {
                    info!(lease = %self.config.name, identity = %self.config.identity, "leads");
                }
            }
            None => {
                if self.teller.ends() {
                    info!(lease = %self.config.name, identity = %self.config.identity, "does not lead any more");
                }
            }
        }
    }

    async fn wait(&mut self, at: Instant, shutdown: &CancellationToken) {
        let at = self.candidate.leads_until().map_or(at, |until| until.min(at));
        tokio::select! {
            () = sleep_until(at) => {}
            () = shutdown.cancelled() => {}
        }
    }

    async fn read(&mut self, shutdown: &CancellationToken) {
        let until = self.candidate.leads_until();
        let call = self.leases.read(self.times.duration);
        let answer = guarded(call, self.times, until, &mut self.teller, shutdown).await;
        let now = Instant::now();
        match answer {
            Some(Ok(lease)) => {
                self.candidate.read(now, lease);
                self.succeeded();
            }
            Some(Err(error)) => {
                self.candidate.unreadable(now);
                self.failed(&error);
            }
            None => {
                self.candidate.unreadable(now);
                self.late(shutdown);
            }
        }
    }

    /// Whether it is known how it ended.
    async fn write(&mut self, claim: Claim, shutdown: &CancellationToken) -> bool {
        let begun = Instant::now();
        let until = self.candidate.leads_until();
        let call = self.leases.write(&claim);
        let answer = guarded(call, self.times, until, &mut self.teller, shutdown).await;
        let now = Instant::now();
        let Some((how, error)) = answer else {
            self.candidate.written(begun, now, claim, Written::Failed);
            self.late(shutdown);
            return false;
        };
        let known = how != Written::Failed;
        self.candidate.written(begun, now, claim, how);
        match &error {
            Some(error) => self.failed(error),
            None => self.succeeded(),
        }
        known
    }
}

/// Makes a call, for half of the deadline at most, and ends the lead when its time comes
/// meanwhile. `None`: no answer in time, or shutdown.
async fn guarded<T>(
    call: impl Future<Output = T>,
    times: Times,
    leads_until: Option<Instant>,
    teller: &mut Teller,
    shutdown: &CancellationToken,
) -> Option<T> {
    let limit = Instant::now() + times.deadline / 2;
    let mut call = std::pin::pin!(call);
    if let Some(until) = leads_until.filter(|until| *until < limit) {
        tokio::select! {
            answer = &mut call => return Some(answer),
            () = sleep_until(until) => { teller.ends(); }
            () = shutdown.cancelled() => return None,
        }
    }
    tokio::select! {
        answer = call => Some(answer),
        () = sleep_until(limit) => None,
        () = shutdown.cancelled() => None,
    }
}

impl Runner {
    fn succeeded(&mut self) {
        if std::mem::take(&mut self.failing) {
            info!(lease = %self.config.name, "the Lease can be used again");
        }
    }

    fn late(&mut self, shutdown: &CancellationToken) {
        if !shutdown.is_cancelled() {
            self.failed(&"no answer in time");
        }
    }

    fn failed(&mut self, error: &dyn std::fmt::Display) {
        let ElectionConfig { namespace, name, .. } = &self.config;
        if std::mem::replace(&mut self.failing, true) {
            debug!(lease = %name, %namespace, %error, "the Lease cannot be used");
        } else {
            warn!(lease = %name, %namespace, %error, "the Lease cannot be used; is tried again");
        }
    }

    /// Gives the Lease up, so that another need not wait; best effort, within `deadline`.
    async fn release(mut self, mut unsure: bool) {
        let limit = Instant::now() + self.times.deadline;
        self.teller.ends();
        // What was begun as leader is cut by now, but may not have seen it yet. The Lease is
        // its own until this moment at least.
        if let Some(until) = self.candidate.leads_until()
            && timeout_at(until, self.teller.idle()).await.is_err()
        {
            warn!(lease = %self.config.name, "work of the leader has not ended; the Lease runs out");
            return;
        }
        for _ in 0..2 {
            if unsure {
                let Ok(Ok(lease)) = timeout_at(limit, self.leases.read(self.times.duration)).await
                else {
                    return;
                };
                self.candidate.read(Instant::now(), lease);
            }
            let Some(claim) = self.candidate.release() else { return };
            match timeout_at(limit, self.leases.write(&claim)).await {
                Ok((Written::Done { .. }, _)) => {
                    debug!(lease = %self.config.name, "gave the Lease up");
                    return;
                }
                Ok((Written::Conflict, _)) => unsure = true,
                _ => return,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mended(duration: u64, deadline: u64, retry: u64) -> (u64, u64, u64) {
        let Times { duration, deadline, retry } = times(&ElectionConfig {
            duration: Duration::from_millis(duration),
            deadline: Duration::from_millis(deadline),
            retry: Duration::from_millis(retry),
            ..ElectionConfig::new("default", "lease", "me")
        });
        let millis = |time: Duration| u64::try_from(time.as_millis()).expect("short");
        (millis(duration), millis(deadline), millis(retry))
    }

    #[test]
    fn times_that_make_no_sense_are_mended() {
        assert_eq!(mended(15_000, 10_000, 2_000), (15_000, 10_000, 2_000));
        // A Lease knows whole seconds only.
        assert_eq!(mended(3_900, 2_000, 500), (3_000, 2_000, 500));
        assert_eq!(mended(3_900, 3_500, 500), (3_000, 2_000, 500));
        assert_eq!(mended(15_000, 15_000, 2_000), (15_000, 10_000, 2_000));
        assert_eq!(mended(0, 0, 0), (1_000, 100, 10));
        assert_eq!(mended(15_000, 9_000, 20_000), (15_000, 9_000, 3_000));
        assert_eq!(mended(86_400_000, 10_000, 2_000), (3_600_000, 10_000, 2_000));
    }
}
