use std::{
    pin::Pin,
    task::{Context, Poll},
};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;

pin_project! {
    /// The body of an answer: the service's own, or the few words of a refusal. The default is
    /// an empty one.
    #[derive(Debug)]
    pub struct GuardedBody<B> {
        #[pin]
        inner: Inner<B>,
    }
}

pin_project! {
    #[derive(Debug)]
    #[project = InnerProjection]
    enum Inner<B> {
        Served { #[pin] body: B },
        Refused { text: Option<Bytes> },
    }
}

impl<B> GuardedBody<B> {
    pub(super) fn served(body: B) -> Self {
        Self { inner: Inner::Served { body } }
    }

    /// Empty: no body at all.
    pub(super) fn refused(text: Bytes) -> Self {
        Self { inner: Inner::Refused { text: Some(text).filter(|text| !text.is_empty()) } }
    }
}

impl<B> Default for GuardedBody<B> {
    fn default() -> Self {
        Self::refused(Bytes::new())
    }
}

impl<B> Body for GuardedBody<B>
where
    B: Body,
    B::Data: From<Bytes>,
{
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        match self.project().inner.project() {
            InnerProjection::Served { body } => body.poll_frame(cx),
            InnerProjection::Refused { text } => {
                Poll::Ready(text.take().map(|text| Ok(Frame::data(text.into()))))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.inner {
            Inner::Served { body } => body.is_end_stream(),
            Inner::Refused { text } => text.is_none(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.inner {
            Inner::Served { body } => body.size_hint(),
            Inner::Refused { text } => {
                SizeHint::with_exact(text.as_ref().map_or(0, |text| text.len() as u64))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::{BodyExt as _, Full};

    use super::*;

    #[tokio::test]
    async fn a_refusal_is_its_words_and_the_default_nothing() {
        type Guarded = GuardedBody<Full<Bytes>>;
        let (served, refused) = (Full::new(Bytes::from("yes")), Bytes::from("no"));
        for (body, text) in [
            (Guarded::served(served), "yes"),
            (Guarded::refused(refused), "no"),
            (Guarded::default(), ""),
        ] {
            assert_eq!(body.size_hint().exact(), Some(text.len() as u64));
            assert_eq!(body.is_end_stream(), text.is_empty());
            let whole = body.collect().await.expect("no error").to_bytes();
            assert_eq!(whole, text);
        }
    }
}
