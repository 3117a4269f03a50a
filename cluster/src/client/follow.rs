//! The client that follows its files: what was read of them is in force until they say
//! something else.

use std::{
    error::Error,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll},
    time::Duration,
};

use arc_swap::ArcSwap;
use http::{Request, Response, StatusCode};
use hyper::body::Incoming;
use kube::client::Body;
use tokio::time::Instant;
use tower::{BoxError, Service, ServiceExt as _};
use tracing::{info, warn};

use super::{
    source::{FileText, Source},
    stack::{self, Stack},
};
use crate::ClusterError;

/// The files are looked at no more often than this while all goes well.
const LOOK: Duration = Duration::from_secs(10);

/// A service over the stack that goes by the files as they are now. Clones share it.
#[derive(Clone)]
pub(super) struct Follow(Arc<Shared>);

struct Shared {
    source: Source,
    current: ArcSwap<Epoch>,
    /// When the files were last looked at, and what was last said about them.
    looked: Mutex<Looked>,
    /// Who looks; others wait for the outcome.
    looking: tokio::sync::Mutex<()>,
}

struct Looked {
    at: Instant,
    /// When the plugin was last asked, if there is one.
    asked: Instant,
    complaint: Option<String>,
}

/// What is in force from one reading of the files to the next.
struct Epoch {
    stack: Stack,
    files: Vec<FileText>,
    /// Credentials come from a program, which is asked again when they are refused.
    plugin: bool,
}

impl Epoch {
    /// Blocks: reads files, and runs a credential plugin if there is one.
    fn load(source: &Source) -> Result<(Self, kube::Config), ClusterError> {
        let loaded = source.load()?;
        let stack = stack::build(&loaded.config)?;
        let auth = &loaded.config.auth_info;
        let plugin = auth.exec.is_some() || auth.auth_provider.is_some();
        Ok((Self { stack, files: loaded.files, plugin }, loaded.config))
    }
}

impl Follow {
    /// Reads everything for the first time.
    pub(super) async fn start(source: Source) -> Result<(Self, kube::Config), ClusterError> {
        let from = source.clone();
        let (epoch, config) = blocking(move || Epoch::load(&from)).await?;
        let now = Instant::now();
        let shared = Shared {
            source,
            current: ArcSwap::from_pointee(epoch),
            looked: Mutex::new(Looked { at: now, asked: now, complaint: None }),
            looking: tokio::sync::Mutex::new(()),
        };
        Ok((Self(Arc::new(shared)), config))
    }

    async fn serve(self, request: Request<Body>) -> Result<Response<Incoming>, BoxError> {
        if let Some(due) = Instant::now().checked_sub(LOOK)
            && self.looked().at < due
        {
            self.look(&self.0.current.load_full(), due, false).await;
        }
        let used = self.0.current.load_full();
        let again = copy(&request);
        let answer = used.stack.clone().oneshot(request).await;
        let refused = matches!(&answer, Ok(a) if a.status() == StatusCode::UNAUTHORIZED);
        if !refused && answer.is_ok() {
            return answer;
        }
        // The server may have a new certificate, or the credentials may have been replaced
        // since: the files know.
        let changed = self.look(&used, Instant::now(), refused).await;
        // Sent again only where the server has certainly not acted on it.
        let unsent = refused || matches!(&answer, Err(e) if not_connected(e.as_ref()));
        match again {
            Some(again) if changed && unsent => {
                self.0.current.load_full().stack.clone().oneshot(again).await
            }
            _ => answer,
        }
    }

    fn looked(&self) -> MutexGuard<'_, Looked> {
        self.0.looked.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Looks at the files, unless somebody has since `since`; whether something else than
    /// `used` is in force now.
    async fn look(&self, used: &Arc<Epoch>, since: Instant, refused: bool) -> bool {
        let _one = self.0.looking.lock().await;
        if !Arc::ptr_eq(&self.0.current.load(), used) {
            return true;
        }
        if self.looked().at > since {
            return false;
        }
        let begun = Instant::now();
        // A plugin is a process each time, so it is not asked at every refusal.
        let ask_plugin = used.plugin && refused && self.looked().asked.elapsed() >= LOOK;
        let (source, epoch) = (self.0.source.clone(), used.clone());
        let outcome = blocking(move || {
            let changed: Vec<_> = epoch.files.iter().filter(|file| file.changed()).collect();
            if changed.is_empty() && !ask_plugin {
                return Ok(None);
            }
            let (new, _) = Epoch::load(&source)?;
            Ok(Some((new, format!("{changed:?}"))))
        })
        .await;
        let mut looked = self.looked();
        looked.at = begun;
        if ask_plugin {
            looked.asked = begun;
        }
        match outcome {
            Ok(None) => {
                looked.complaint = None;
                false
            }
            Ok(Some((epoch, files))) => {
                looked.complaint = None;
                info!(%files, "follow the new credentials for the API server");
                self.0.current.store(Arc::new(epoch));
                true
            }
            Err(error) => {
                let complaint = error.to_string();
                if looked.complaint.as_ref() != Some(&complaint) {
                    warn!(%error, "keep the credentials for the API server that were read before");
                    looked.complaint = Some(complaint);
                }
                false
            }
        }
    }
}

impl Service<Request<Body>> for Follow {
    type Response = Response<Incoming>;
    type Error = BoxError;
    type Future = futures_util::future::BoxFuture<'static, Result<Self::Response, BoxError>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        Box::pin(self.clone().serve(request))
    }
}

/// Runs what reads files or waits for a program where it holds nobody up.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, ClusterError> + Send + 'static,
) -> Result<T, ClusterError> {
    tokio::task::spawn_blocking(work).await.unwrap_or_else(|error| {
        Err(ClusterError::Config { what: "reading credentials".into(), reason: error.to_string() })
    })
}

/// The same request once more, where its body allows that.
fn copy(request: &Request<Body>) -> Option<Request<Body>> {
    let mut copy = Request::new(request.body().try_clone()?);
    *copy.method_mut() = request.method().clone();
    *copy.uri_mut() = request.uri().clone();
    *copy.version_mut() = request.version();
    *copy.headers_mut() = request.headers().clone();
    *copy.extensions_mut() = request.extensions().clone();
    Some(copy)
}

/// Whether there was no connection, so that nothing of the request can have arrived.
fn not_connected(error: &(dyn Error + 'static)) -> bool {
    let mut error = Some(error);
    while let Some(one) = error {
        if let Some(http) = one.downcast_ref::<hyper_util::client::legacy::Error>() {
            return http.is_connect();
        }
        error = one.source();
    }
    false
}
