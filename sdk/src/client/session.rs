//! The connection to the plane: carries what the observe client says, and what it is told.

use std::{
    sync::Arc,
    time::{Duration, Instant, SystemTime},
};

use rulecast_api::{
    Code,
    proto::observe::v1::{
        Node, ObserveRequest, ObserveResponse, rule_service_client::RuleServiceClient,
    },
};
use rulecast_identity::{
    ConnectOptions, Expected, IdentityError, IdentityHandle, Svid, connect, tls::client_config,
};
use tokio::{
    sync::{mpsc, watch},
    time,
};
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;
use tonic::{Status, Streaming};
use tracing::{debug, info, warn};

use super::{
    report,
    shared::{Held, Shared},
};
use crate::{
    metrics::Reporter,
    observe::{Observer, ObserverConfig, ProtocolError},
};

/// Requests under way to the connection: the observe client has few, and waits for answers.
const REQUESTS: usize = 16;

/// Largest message that is taken. The plane cuts large states into chunks far below.
const MAX_MESSAGE: usize = 64 << 20;

/// A renewed certificate is shown to the plane within this time, or a quarter of what the
/// old one has left, so that clients that renewed together do not come back together.
const RENEWED: Duration = Duration::from_secs(10);

/// One client's connection to its plane.
pub(super) struct Session {
    pub(super) shared: Arc<Shared>,
    pub(super) identity: IdentityHandle,
    pub(super) plane: String,
    pub(super) application: String,
    pub(super) instance: Option<String>,
    pub(super) services: Vec<String>,
    pub(super) connect: ConnectOptions,
    /// Shortest and longest wait before connecting again.
    pub(super) backoff: (Duration, Duration),
    /// For the disk.
    pub(super) newest: watch::Sender<Option<Arc<Held>>>,
    /// How often the plane is told what rules made of calls.
    pub(super) report: Option<Duration>,
    pub(super) stop: CancellationToken,
}

/// Why a stream is no more.
enum End {
    Stopped,
    /// The certificate was renewed: a new stream with the new one, at once.
    Renewed,
    Failed(String),
}

impl From<Status> for End {
    fn from(status: Status) -> Self {
        Self::Failed(match IdentityError::find(&status) {
            Some(error) => error.to_string(),
            None if status.message().starts_with("RC") => status.message().to_owned(),
            None => format!(
                "{} the plane ended the stream ({:?}): {}",
                Code::PlaneUnreachable,
                status.code(),
                status.message()
            ),
        })
    }
}

impl From<IdentityError> for End {
    fn from(error: IdentityError) -> Self {
        Self::Failed(error.to_string())
    }
}

impl From<ProtocolError> for End {
    fn from(error: ProtocolError) -> Self {
        Self::Failed(error.to_string())
    }
}

impl Session {
    /// Connects, and again whenever the connection is lost, until the client stops.
    pub(super) async fn run(self) {
        let node = Node {
            instance: self
                .instance
                .clone()
                .unwrap_or_else(|| format!("{:032x}", fastrand::u128(..))),
            application: self.application.clone(),
            agent: concat!("rulecast-sdk/", env!("CARGO_PKG_VERSION")).into(),
            engine_digest: self.shared.engine.to_bytes(),
            abi: vec![1],
            labels: self.shared.labels(),
        };
        let types = self.shared.types.iter().cloned();
        let config = ObserverConfig {
            backoff_least: self.backoff.0,
            backoff_most: self.backoff.1,
            ..ObserverConfig::default()
        };
        let mut observer = Observer::new(config, node, types, self.services.clone());
        let mut reporter = Reporter::default();
        let held = self.shared.held();
        for (type_name, kind) in &held.kinds {
            observer.restore(type_name, kind);
        }
        loop {
            let now = Instant::now();
            if let Some(at) = observer.connect_at(now) {
                let wait = time::sleep(at.saturating_duration_since(now));
                if self.stop.run_until_cancelled(wait).await.is_none() {
                    return;
                }
            }
            // One connection after another when the certificate is renewed.
            let end = loop {
                match self.stream(&mut observer, &mut reporter).await {
                    End::Renewed => debug!("showing the plane the new certificate"),
                    end => break end,
                }
            };
            let End::Failed(reason) = end else { return };
            observer.disconnected(Instant::now());
            let (was, before) = {
                let status = self.shared.status.borrow();
                (status.connected, status.plane_error.clone())
            };
            if was || before.as_ref() != Some(&reason) {
                warn!(plane = %self.plane, %reason, "no stream to the plane; the rules held stay in force");
            }
            self.shared.update(|status| {
                status.connected = false;
                status.plane_error = Some(reason);
            });
        }
    }

    /// One stream, from its opening to its end.
    async fn stream(&self, observer: &mut Observer, reporter: &mut Reporter) -> End {
        match self.talk(observer, reporter).await {
            Ok(end) | Err(end) => end,
        }
    }

    async fn talk(&self, observer: &mut Observer, reporter: &mut Reporter) -> Result<End, End> {
        let mut renewed = self.identity.subscribe();
        let shown = renewed.borrow_and_update().not_after;
        let tls = client_config(&self.identity, Expected::dds())?;
        let connected = self.stop.run_until_cancelled(connect(&self.plane, tls, &self.connect));
        let channel = connected.await.ok_or(End::Stopped)??;
        let mut client =
            RuleServiceClient::new(channel.clone()).max_decoding_message_size(MAX_MESSAGE);
        let (requests, outgoing) = mpsc::channel(REQUESTS);
        observer.connected();
        flush(observer, &requests)?;
        // The plane answers when it has read the first request.
        let open = client.observe(ReceiverStream::new(outgoing));
        let open = time::timeout(self.connect.connect_timeout, open);
        let mut responses = self
            .stop
            .run_until_cancelled(open)
            .await
            .ok_or(End::Stopped)?
            .map_err(|_| {
                let waited = self.connect.connect_timeout;
                End::Failed(format!(
                    "{} the plane did not open the stream within {waited:?}",
                    Code::PlaneUnreachable
                ))
            })??
            .into_inner();
        info!(plane = %self.plane, "connected");
        self.shared.update(|status| {
            status.connected = true;
            status.plane_error = None;
        });
        tokio::select! {
            end = self.listen(observer, &mut responses, &requests, &mut renewed, shown) => end,
            never = report::run(&self.shared, channel, reporter, self.report) => match never {},
        }
    }

    async fn listen(
        &self,
        observer: &mut Observer,
        responses: &mut Streaming<ObserveResponse>,
        requests: &mpsc::Sender<ObserveRequest>,
        renewed: &mut watch::Receiver<Arc<Svid>>,
        shown: SystemTime,
    ) -> Result<End, End> {
        let mut leave = None;
        loop {
            tokio::select! {
                message = responses.message() => {
                    let Some(response) = message? else {
                        let reason = format!("{} the plane closed the stream", Code::Draining);
                        return Err(End::Failed(reason));
                    };
                    observer.on_response(response)?;
                    while let Some(apply) = observer.next_apply() {
                        let type_name = apply.type_name.clone();
                        match self.shared.apply(apply).await {
                            Ok((held, refused)) => {
                                self.newest.send_replace(Some(held.clone()));
                                if let Some(kind) = held.kinds.get(&type_name) {
                                    observer.applied(&type_name, kind, &refused);
                                }
                            }
                            Err(reason) => {
                                warn!(%type_name, %reason, "a response was not applied");
                                observer.refused(&type_name, Code::RuleRefused, &reason);
                            }
                        }
                    }
                    flush(observer, requests)?;
                }
                Ok(()) = renewed.changed(), if leave.is_none() => {
                    // Before the old certificate ends, on which the plane cuts the stream.
                    let left = shown.duration_since(SystemTime::now()).unwrap_or_default();
                    let within = RENEWED.min(left / 4);
                    leave = Some(Instant::now() + within.mul_f64(fastrand::f64()));
                }
                () = until(leave) => return Ok(End::Renewed),
                // Only here: what was put in force is also handed on for the disk.
                () = self.stop.cancelled() => return Ok(End::Stopped),
            }
        }
    }
}

async fn until(at: Option<Instant>) {
    match at {
        Some(at) => time::sleep_until(at.into()).await,
        None => std::future::pending().await,
    }
}

/// Sends what the observe client has to say.
fn flush(observer: &mut Observer, requests: &mpsc::Sender<ObserveRequest>) -> Result<(), End> {
    while let Some(request) = observer.next_request() {
        requests.try_send(request).map_err(|_| {
            End::Failed(format!("{} the plane takes no requests", Code::PlaneUnreachable))
        })?;
    }
    Ok(())
}
