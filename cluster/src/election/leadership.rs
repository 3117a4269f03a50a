//! Whether this candidate leads.

use tokio::{sync::watch, time::Instant};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

/// Whether this candidate leads. Clones share it.
#[derive(Clone, Debug)]
pub struct Leadership {
    state: watch::Receiver<Option<Term>>,
    /// What runs in [`Leadership::lead`]; the Lease is given up only after it has ended.
    works: TaskTracker,
}

/// One time of leading without a break.
#[derive(Clone, Debug)]
pub struct Term {
    number: u64,
    until: Instant,
    ended: CancellationToken,
}

impl Term {
    /// Counts the terms of this process, from 1.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Cancelled when the lead is lost or given up. Give work that is done as leader a child of
    /// it, or select on it.
    pub fn ended(&self) -> &CancellationToken {
        &self.ended
    }
}

impl Leadership {
    /// Whether it leads now. True only before the deadline of the last renewal, so it is right
    /// also after a pause of the process.
    pub fn leads(&self) -> bool {
        self.term().is_some()
    }

    /// The term, while it leads.
    pub fn term(&self) -> Option<Term> {
        self.state.borrow().clone().filter(|term| Instant::now() < term.until)
    }

    /// Waits until it begins or ceases to lead; never ends once the campaign has.
    pub async fn changed(&mut self) {
        if self.state.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
    }

    /// Waits until it leads; never ends once the campaign has.
    pub async fn wait(&mut self) {
        while !self.leads() {
            self.changed().await;
        }
    }

    /// Does `work` while it leads: once in each term, and cut, by dropping it at its next
    /// `await`, as soon as the term ends. Work that ends by itself is not begun again in the
    /// same term. On shutdown the Lease is given up only after the work was cut. Ends with the
    /// campaign.
    pub async fn lead<W, F>(&self, mut work: W)
    where
        W: FnMut(Term) -> F,
        F: Future<Output = ()>,
    {
        let mut state = self.state.clone();
        let mut last = 0;
        loop {
            let new = |term: &Option<Term>| term.as_ref().is_some_and(|term| term.number > last);
            let term = match state.wait_for(new).await {
                Ok(term) => term.clone(),
                Err(_) => return,
            };
            let Some(term) = term else { continue };
            last = term.number;
            let ended = term.ended.clone();
            {
                let _works = self.works.token();
                tokio::select! {
                    biased;
                    () = ended.cancelled() => {}
                    () = work(term) => {}
                }
            }
            ended.cancelled().await;
        }
    }
}

/// The other side: tells every [`Leadership`]. When it is dropped, the lead is lost.
pub(super) struct Teller {
    state: watch::Sender<Option<Term>>,
    works: TaskTracker,
    terms: u64,
}

impl Teller {
    pub(super) fn new() -> (Self, Leadership) {
        let (sender, state) = watch::channel(None);
        let works = TaskTracker::new();
        works.close();
        (Self { state: sender, works: works.clone(), terms: 0 }, Leadership { state, works })
    }

    /// Leads until then, unless it is told otherwise before; whether that is a new term.
    pub(super) fn leads(&mut self, until: Instant) -> bool {
        // A term that ran out while nobody looked is over, though the Lease was kept.
        let over = self.state.borrow().as_ref().is_some_and(|term| term.until <= Instant::now());
        if over {
            self.ends();
        }
        let terms = &mut self.terms;
        self.state.send_if_modified(|term| match term {
            Some(term) => {
                term.until = until;
                false
            }
            None => {
                *terms += 1;
                *term = Some(Term { number: *terms, until, ended: CancellationToken::new() });
                true
            }
        })
    }

    /// Does not lead; whether it did.
    pub(super) fn ends(&mut self) -> bool {
        let ended = self.state.borrow().as_ref().map(|term| term.ended.clone());
        let Some(ended) = ended else { return false };
        self.state.send_replace(None);
        ended.cancel();
        true
    }

    /// Waits until nothing runs in [`Leadership::lead`].
    pub(super) async fn idle(&self) {
        self.works.wait().await;
    }
}

impl Drop for Teller {
    fn drop(&mut self) {
        self.ends();
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::sleep;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[tokio::test(start_paused = true)]
    async fn it_leads_until_its_time_and_no_moment_longer() {
        let (mut teller, mut leadership) = Teller::new();
        assert!(!leadership.leads());
        assert!(teller.leads(Instant::now() + SECOND));
        leadership.changed().await;
        let term = leadership.term().expect("it leads");
        assert!(!teller.leads(Instant::now() + 2 * SECOND), "the same term");
        assert_eq!(leadership.term().expect("it leads").number(), term.number());
        sleep(2 * SECOND).await;
        // Nobody has said so yet, as after a pause of the process.
        assert!(!leadership.leads());
        assert!(!term.ended().is_cancelled());
        assert!(teller.leads(Instant::now() + SECOND), "a new term after such a pause");
        assert!(term.ended().is_cancelled());
        let term = leadership.term().expect("it leads");
        assert_eq!(term.number(), 2);
        assert!(teller.ends());
        assert!(term.ended().is_cancelled());
        assert!(!teller.ends());
        assert!(teller.leads(Instant::now() + SECOND));
        assert_eq!(leadership.term().expect("it leads").number(), term.number() + 1);
    }

    #[tokio::test(start_paused = true)]
    async fn work_is_done_once_a_term_and_cut_with_it() {
        let (mut teller, leadership) = Teller::new();
        let (begun, mut terms) = tokio::sync::mpsc::unbounded_channel();
        let working = tokio::spawn({
            let leadership = leadership.clone();
            async move {
                let work = |term: Term| {
                    let begun = begun.clone();
                    async move {
                        let _ = begun.send(term.number());
                        // The second term's work ends by itself, the others' do not.
                        if term.number() != 2 {
                            std::future::pending::<()>().await;
                        }
                    }
                };
                leadership.lead(work).await;
            }
        });
        for term in 1..=3 {
            teller.leads(Instant::now() + SECOND);
            assert_eq!(terms.recv().await, Some(term));
            if term != 2 {
                tokio::time::timeout(SECOND, teller.idle()).await.expect_err("it works");
            }
            teller.ends();
            teller.idle().await;
            assert!(terms.try_recv().is_err(), "once a term");
        }
        drop(teller);
        working.await.expect("it ends with the campaign");
    }

    #[tokio::test]
    async fn a_campaign_that_is_dropped_leads_no_more() {
        let (mut teller, leadership) = Teller::new();
        teller.leads(Instant::now() + 3600 * SECOND);
        let term = leadership.term().expect("it leads");
        drop(teller);
        assert!(!leadership.leads());
        assert!(term.ended().is_cancelled());
    }
}
