//! A request's body that can be sent more than once.

use std::{
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use http::HeaderMap;
use http_body::{Frame, SizeHint};
use tonic::{Status, body::Body};

/// What is kept of a body at most, in bytes.
pub(super) const MAX_KEPT: usize = 64 * 1024;

/// Keeps what a try sends, so that the next one can send it again and then go on with the rest.
/// Nothing waits for the body's end: a stream flows while it is kept.
#[derive(Clone, Debug)]
pub(super) struct Replay(Arc<Mutex<State>>);

#[derive(Debug)]
struct State {
    rest: Body,
    kept: Vec<Kept>,
    bytes: usize,
    /// More was sent than is kept.
    lost: bool,
    /// The try that may read.
    current: u32,
}

#[derive(Clone, Debug)]
enum Kept {
    Data(Bytes),
    Trailers(HeaderMap),
}

impl Kept {
    fn frame(&self) -> Frame<Bytes> {
        match self {
            Self::Data(data) => Frame::data(data.clone()),
            Self::Trailers(trailers) => Frame::trailers(trailers.clone()),
        }
    }
}

impl Replay {
    /// Of a body, and it itself for the first try.
    pub(super) fn new(body: Body) -> (Self, Body) {
        let (kept, bytes, lost, current) = (Vec::new(), 0, false, 0);
        let state = State { rest: body, kept, bytes, lost, current };
        let replay = Self(Arc::new(Mutex::new(state)));
        let first = Body::new(Try { replay: replay.clone(), number: current, at: 0 });
        (replay, first)
    }

    /// The body for the next try; `None`: it was too large to be kept. What the try before has
    /// of it ends.
    pub(super) fn next(&self) -> Option<Body> {
        let number = {
            let mut state = self.state();
            if state.lost {
                return None;
            }
            state.current += 1;
            state.current
        };
        // It asks the body whether it has ended, so the lock must be free.
        Some(Body::new(Try { replay: self.clone(), number, at: 0 }))
    }

    /// There will be no more tries: keeps nothing from now on.
    pub(super) fn settle(&self) {
        self.state().lost = true;
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Nothing panics under it but the application's own body.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The body as one try sends it.
struct Try {
    replay: Replay,
    number: u32,
    /// Frames sent.
    at: usize,
}

impl http_body::Body for Try {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let this = &mut *self;
        let mut state = this.replay.state();
        if state.current != this.number {
            return Poll::Ready(Some(Err(Status::cancelled("another try has begun"))));
        }
        if let Some(kept) = state.kept.get(this.at) {
            this.at += 1;
            return Poll::Ready(Some(Ok(kept.frame())));
        }
        let Some(frame) = ready!(Pin::new(&mut state.rest).poll_frame(cx)?) else {
            return Poll::Ready(None);
        };
        let (bytes, kept) = match (frame.data_ref(), frame.trailers_ref()) {
            (Some(data), _) => (data.len(), Some(Kept::Data(data.clone()))),
            (_, Some(trailers)) => (0, Some(Kept::Trailers(trailers.clone()))),
            _ => (0, None),
        };
        state.bytes = state.bytes.saturating_add(bytes);
        match kept.filter(|_| !state.lost && state.bytes <= MAX_KEPT) {
            Some(kept) => {
                state.kept.push(kept);
                this.at += 1;
            }
            None => {
                state.lost = true;
                state.kept = Vec::new();
                this.at = 0;
            }
        }
        Poll::Ready(Some(Ok(frame)))
    }

    fn is_end_stream(&self) -> bool {
        let state = self.replay.state();
        self.at >= state.kept.len() && state.rest.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let state = self.replay.state();
        let left = state.kept.get(self.at..).unwrap_or_default().iter().map(|kept| match kept {
            Kept::Data(data) => data.len() as u64,
            Kept::Trailers(_) => 0,
        });
        let (left, rest): (u64, _) = (left.sum(), state.rest.size_hint());
        let mut hint = SizeHint::new();
        hint.set_lower(rest.lower().saturating_add(left));
        if let Some(upper) = rest.upper() {
            hint.set_upper(upper.saturating_add(left));
        }
        hint
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use http_body::Body as _;
    use http_body_util::BodyExt as _;

    use super::*;

    /// Frames of data, then trailers.
    fn body(parts: &[&'static [u8]]) -> Body {
        struct Parts(VecDeque<Kept>);
        impl http_body::Body for Parts {
            type Data = Bytes;
            type Error = Status;
            fn poll_frame(
                mut self: Pin<&mut Self>,
                _: &mut Context<'_>,
            ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
                Poll::Ready(self.0.pop_front().map(|kept| Ok(kept.frame())))
            }
        }
        let mut trailers = HeaderMap::new();
        trailers.insert("x-end", "yes".parse().expect("a value"));
        let data = parts.iter().map(|part| Kept::Data(Bytes::from_static(part)));
        Body::new(Parts(data.chain([Kept::Trailers(trailers)]).collect()))
    }

    async fn frame(body: &mut Body) -> Option<Bytes> {
        body.frame().await?.expect("no error").into_data().ok()
    }

    #[tokio::test]
    async fn a_second_try_sends_all_again_and_the_rest() {
        let (replay, mut first) = Replay::new(body(&[b"a", b"b", b"c"]));
        assert_eq!(frame(&mut first).await.as_deref(), Some(&b"a"[..]));
        assert_eq!(frame(&mut first).await.as_deref(), Some(&b"b"[..]));
        let second = replay.next().expect("kept");
        assert!(first.frame().await.is_some_and(|frame| frame.is_err()), "the first has ended");
        let whole = second.collect().await.expect("no error");
        assert_eq!(
            whole.trailers().and_then(|t| t.get("x-end")).map(|v| v.as_bytes()),
            Some(&b"yes"[..])
        );
        assert_eq!(whole.to_bytes(), "abc");
        let third = replay.next().expect("kept").collect().await.expect("no error");
        assert!(third.trailers().is_some());
        assert_eq!(third.to_bytes(), "abc");
    }

    #[tokio::test]
    async fn what_is_too_large_is_sent_once() {
        static LARGE: [u8; MAX_KEPT] = [7; MAX_KEPT];
        let (replay, first) = Replay::new(body(&[&LARGE]));
        assert_eq!(first.collect().await.expect("sent").to_bytes().len(), MAX_KEPT);
        assert!(replay.next().is_some(), "as much as is kept");
        let (replay, first) = Replay::new(body(&[&LARGE, b"x", b"y"]));
        let whole = first.collect().await.expect("sent");
        assert_eq!(whole.to_bytes().len(), MAX_KEPT + 2);
        assert!(replay.next().is_none());
    }

    #[tokio::test]
    async fn nothing_is_kept_after_the_answer() {
        let (replay, mut first) = Replay::new(body(&[b"a", b"b", b"c"]));
        frame(&mut first).await;
        let mut second = replay.next().expect("kept");
        replay.settle();
        let whole = (&mut second).collect().await.expect("no error");
        assert_eq!(whole.to_bytes(), "abc");
        assert!(replay.state().kept.is_empty());
        assert!(replay.next().is_none());
    }

    #[tokio::test]
    async fn says_how_much_there_is() {
        let data = http_body_util::Full::new(Bytes::from_static(b"abcd"));
        let (replay, mut first) = Replay::new(Body::new(data));
        assert_eq!(first.size_hint().exact(), Some(4));
        assert!(!first.is_end_stream());
        frame(&mut first).await;
        assert!(first.is_end_stream());
        let second = replay.next().expect("kept");
        assert_eq!(second.size_hint().exact(), Some(4));
        assert!(!second.is_end_stream());
    }
}
