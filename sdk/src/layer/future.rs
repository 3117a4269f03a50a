use std::{
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use http::Response;
use pin_project_lite::pin_project;

use super::body::GuardedBody;

pin_project! {
    /// The answer to come: the service's, or a refusal at once.
    #[must_use = "futures do nothing unless polled"]
    #[derive(Debug)]
    pub struct GuardedFuture<F> {
        #[pin]
        inner: Inner<F>,
    }
}

pin_project! {
    #[derive(Debug)]
    #[project = InnerProjection]
    enum Inner<F> {
        Served { #[pin] answer: F },
        Refused { answer: Option<Response<Bytes>> },
    }
}

impl<F> GuardedFuture<F> {
    pub(super) fn served(answer: F) -> Self {
        Self { inner: Inner::Served { answer } }
    }

    pub(super) fn refused(answer: Response<Bytes>) -> Self {
        Self { inner: Inner::Refused { answer: Some(answer) } }
    }
}

impl<F, B, E> Future for GuardedFuture<F>
where
    F: Future<Output = Result<Response<B>, E>>,
{
    type Output = Result<Response<GuardedBody<B>>, E>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match self.project().inner.project() {
            InnerProjection::Served { answer } => {
                Poll::Ready(ready!(answer.poll(cx)).map(|answer| answer.map(GuardedBody::served)))
            }
            // Polled again after its end it has nothing to say.
            InnerProjection::Refused { answer } => match answer.take() {
                Some(answer) => Poll::Ready(Ok(answer.map(GuardedBody::refused))),
                None => Poll::Pending,
            },
        }
    }
}
