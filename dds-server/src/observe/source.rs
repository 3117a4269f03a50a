//! Where streams get their views from.

use std::{future::Future, sync::Arc};

use rulecast_api::Kind;

use crate::{
    scope::{Scope, Subject},
    stream::Services,
    view::View,
    views::{self, Views},
};

/// Gives views of what a client may see.
pub trait ViewSource: Send + Sync + 'static {
    /// A place at one view.
    type Subscription: ViewSubscription;

    /// The view of a kind for a client and the services that it declares.
    fn subscribe(&self, subject: &Subject, services: Services, kind: Kind) -> Self::Subscription;
}

/// A place at one view; dropping it gives it up.
pub trait ViewSubscription: Send + 'static {
    /// The view now, if there is one, and marks it as seen.
    fn current(&mut self) -> Option<Arc<View>>;

    /// Waits for another view than the one seen last; `None` when there is none for the
    /// moment. Dropping the future loses nothing.
    fn changed(&mut self) -> impl Future<Output = Option<Arc<View>>> + Send;
}

impl ViewSource for Views {
    type Subscription = views::Subscription;

    fn subscribe(&self, subject: &Subject, services: Services, kind: Kind) -> views::Subscription {
        Views::subscribe(self, &Scope { subject: subject.clone(), services }, kind)
    }
}

impl ViewSubscription for views::Subscription {
    fn current(&mut self) -> Option<Arc<View>> {
        views::Subscription::current(self)
    }

    fn changed(&mut self) -> impl Future<Output = Option<Arc<View>>> + Send {
        views::Subscription::changed(self)
    }
}
