//! What is known of pods, without I/O: events of a watch and answers about single pods go
//! in, followers are told.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};

use tokio::sync::watch;

use super::{PodId, Standing};
use crate::scope::{Labels, Traits};

/// What a watch of all pods tells.
#[derive(Clone, Debug)]
pub enum PodEvent {
    /// A list of all pods begins. One that began before and did not end counts for nothing.
    Listing,
    /// The list is complete: pods that it lacks are there no more, or not yet.
    Listed,
    /// A pod is there.
    Present {
        /// `metadata.uid`.
        uid: Arc<str>,
        /// By which it may be selected.
        traits: Traits,
    },
    /// A pod is no more.
    Deleted {
        /// `metadata.uid`.
        uid: Arc<str>,
    },
}

#[derive(Debug, Default)]
pub(super) struct Table {
    pods: HashMap<Arc<str>, Traits>,
    shapes: Shapes,
    /// The pods of the list under way.
    listing: Option<HashSet<Arc<str>>>,
    /// A list was complete.
    synced: bool,
    followed: HashMap<Arc<str>, Followed>,
    /// Followed, and not known to the watch, so the API server is to be asked.
    doubtful: HashSet<Arc<str>>,
}

/// Sets of labels and of annotations, each kept once: pods of one template have the same.
#[derive(Debug, Default)]
struct Shapes {
    all: HashSet<Labels>,
    /// With so many, those that nobody has any more are let go.
    sweep_at: usize,
}

impl Shapes {
    fn share(&mut self, traits: Traits) -> Traits {
        Traits {
            labels: self.share_one(traits.labels),
            annotations: self.share_one(traits.annotations),
            addresses: traits.addresses,
        }
    }

    fn share_one(&mut self, labels: Labels) -> Labels {
        if let Some(same) = self.all.get(&labels) {
            return same.clone();
        }
        if self.all.len() >= self.sweep_at {
            self.all.retain(Labels::is_shared);
            self.sweep_at = 2 * self.all.len() + 64;
        }
        self.all.insert(labels.clone());
        labels
    }
}

#[derive(Debug)]
struct Followed {
    pod: PodId,
    sender: watch::Sender<Standing>,
}

impl Table {
    pub(super) fn apply(&mut self, event: PodEvent) {
        match event {
            PodEvent::Listing => self.listing = Some(HashSet::new()),
            PodEvent::Present { uid, traits } => {
                let traits = self.shapes.share(traits);
                if let Some(listing) = &mut self.listing {
                    listing.insert(uid.clone());
                }
                self.settle(&uid, Standing::Present(traits.clone()));
                self.pods.insert(uid, traits);
            }
            PodEvent::Deleted { uid } => {
                self.pods.remove(&uid);
                if let Some(listing) = &mut self.listing {
                    listing.remove(&uid);
                }
                self.settle(&uid, Standing::Gone);
            }
            PodEvent::Listed => {
                if let Some(listing) = self.listing.take() {
                    self.pods.retain(|uid, _| listing.contains(uid));
                    self.synced = true;
                }
                // A list may be older than a pod, and once it was wrong; so followers of what
                // it lacks keep what they know until the API server has said of that very pod.
                let open = self.followed.iter().filter(|(_, followed)| !followed.has_ended());
                let lacking = open.map(|(uid, _)| uid).filter(|uid| !self.pods.contains_key(*uid));
                self.doubtful.extend(lacking.cloned());
            }
        }
    }

    /// What the API server says of one pod: its traits, or that it is no more.
    pub(super) fn found(&mut self, uid: &str, traits: Option<Traits>) {
        if self.pods.contains_key(uid) && traits.is_some() {
            // The watch knows it by now, and may know a later version.
            return;
        }
        self.settle(uid, traits.map_or(Standing::Gone, Standing::Present));
    }

    /// The API server could not be asked about a pod.
    pub(super) fn not_found_out(&mut self, uid: &str) {
        if let Some((uid, followed)) = self.followed.get_key_value(uid)
            && !followed.has_ended()
            && !self.pods.contains_key(uid)
        {
            self.doubtful.insert(uid.clone());
        }
    }

    /// Tells the followers of a pod. An end is the end: a UID is never used again.
    fn settle(&mut self, uid: &str, standing: Standing) {
        self.doubtful.remove(uid);
        let Some(followed) = self.followed.get(uid) else { return };
        followed.sender.send_if_modified(|now| {
            let other = *now != standing && *now != Standing::Gone;
            if other {
                *now = standing;
            }
            other
        });
    }

    /// Up to `most` pods that somebody follows and the complete list lacks. Each is then to be
    /// told by [`Self::found`] or [`Self::not_found_out`].
    pub(super) fn take_doubtful(&mut self, most: usize) -> Vec<PodId> {
        if !self.synced {
            return Vec::new();
        }
        let taken: Vec<_> = self.doubtful.iter().take(most).cloned().collect();
        taken
            .into_iter()
            .filter_map(|uid| {
                self.doubtful.remove(&uid);
                self.followed.get(&uid).map(|followed| followed.pod.clone())
            })
            .collect()
    }

    pub(super) fn follow(&mut self, pod: PodId) -> watch::Receiver<Standing> {
        if let Some(followed) = self.followed.get(&pod.uid) {
            return followed.sender.subscribe();
        }
        let uid = pod.uid.clone();
        let standing = match self.pods.get(&uid) {
            Some(traits) => Standing::Present(traits.clone()),
            None => {
                self.doubtful.insert(uid.clone());
                Standing::Unknown
            }
        };
        let (sender, receiver) = watch::channel(standing);
        self.followed.insert(uid, Followed { pod, sender });
        receiver
    }

    /// To be called when a receiver is gone.
    pub(super) fn unfollow(&mut self, uid: &str) {
        if self.followed.get(uid).is_some_and(|f| f.sender.receiver_count() == 0) {
            self.followed.remove(uid);
            self.doubtful.remove(uid);
        }
    }

    pub(super) fn synced(&self) -> bool {
        self.synced
    }

    pub(super) fn len(&self) -> usize {
        self.pods.len()
    }

    #[cfg(test)]
    pub(super) fn shapes(&self) -> usize {
        self.shapes.all.len()
    }

    pub(super) fn followed(&self) -> usize {
        self.followed.len()
    }
}

impl Followed {
    fn has_ended(&self) -> bool {
        *self.sender.borrow() == Standing::Gone
    }
}
