//! Local administration: what the plane knows, over a Unix socket that only its
//! owner may open.

use std::{
    fs::{self, Permissions},
    io,
    os::unix::fs::{FileTypeExt as _, PermissionsExt},
    path::Path,
    time::UNIX_EPOCH,
};

use rulecast_api::proto::admin::v1::{
    Client, ClientKind, GetStatusRequest, GetStatusResponse, ListClientsRequest,
    ListClientsResponse, Problem, RejectedRule, Rejection, RuleStatus, Verdict,
    admin_service_server::{AdminService, AdminServiceServer},
};
use rulecast_api::proto::rules::v1::Enforcement;
use rulecast_runtime::Readiness;
use tokio::net::UnixListener;
use tokio_stream::wrappers::UnixListenerStream;
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status};

use crate::{
    reports::{self, Reports, Told},
    rollout::{ClientStatus, KindRollout, Rollout},
    store::{StoreProblem, Stored},
    views::Views,
};

/// Makes the socket at `path`, for its owner alone (0600). One that a dead plane
/// left is replaced; one that answers, or another thing of that name, is not.
pub fn bind(path: &Path) -> io::Result<UnixListener> {
    if fs::symlink_metadata(path).is_ok_and(|there| !there.file_type().is_socket()) {
        return Err(io::Error::new(
            io::ErrorKind::AlreadyExists,
            "something that is no socket is there; move it, or name another socket",
        ));
    }
    if std::os::unix::net::UnixStream::connect(path).is_ok() {
        return Err(io::Error::new(
            io::ErrorKind::AddrInUse,
            "another plane answers there; stop it, or name another socket",
        ));
    }
    // Made out of sight and moved in place, so that nobody can open it before its mode is set.
    let parent = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    fs::create_dir_all(parent)?;
    let aside = tempfile::Builder::new().prefix(".rulecast-").tempdir_in(parent)?;
    let beside = aside.path().join("s");
    let listener = UnixListener::bind(&beside)?;
    fs::set_permissions(&beside, Permissions::from_mode(0o600))?;
    fs::rename(&beside, path)?;
    Ok(listener)
}

/// Serves until `shutdown`.
pub async fn serve(
    listener: UnixListener,
    admin: Admin,
    shutdown: CancellationToken,
) -> Result<(), tonic::transport::Error> {
    tonic::transport::Server::builder()
        .add_service(AdminServiceServer::new(admin))
        .serve_with_incoming_shutdown(UnixListenerStream::new(listener), shutdown.cancelled_owned())
        .await
}

/// Answers from index and rollout.
#[derive(Clone, Debug)]
pub struct Admin {
    views: Views,
    rollout: Rollout,
    reports: Reports,
    readiness: Readiness,
}

impl Admin {
    /// Over what the plane knows.
    pub fn new(views: Views, rollout: Rollout, reports: Reports, readiness: Readiness) -> Self {
        Self { views, rollout, reports, readiness }
    }

    fn rule(&self, stored: &Stored, rollout: &KindRollout) -> RuleStatus {
        let id = &stored.resource.id;
        let key = id.key();
        // Disabled rules are not delivered; nobody should have them.
        let item = self.views.item(id);
        let held = item.as_ref().map(|item| rollout.rule(&key, &item.version)).unwrap_or_default();
        let count = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
        RuleStatus {
            r#type: id.kind.type_name.to_owned(),
            key,
            revision: stored.revision,
            digest: item.map(|item| item.digest.to_bytes()).unwrap_or_default(),
            enabled: stored.resource.spec.enabled(),
            accepted: stored.accepted,
            origin: stored.origin.to_string(),
            matched: count(held.matched),
            applied: count(held.applied),
            rejected: count(held.rejected),
            rejections: held
                .reasons
                .into_iter()
                .map(|(client, reason)| Rejection { client, reason })
                .collect(),
            shadow: stored.resource.enforcement() == Enforcement::Shadow,
            verdicts: verdicts(self.reports.of(id)),
        }
    }
}

#[tonic::async_trait]
impl AdminService for Admin {
    async fn get_status(
        &self,
        request: Request<GetStatusRequest>,
    ) -> Result<Response<GetStatusResponse>, Status> {
        let key = request.into_inner().key;
        let snapshot = self.views.index().snapshot();
        let mut rules = Vec::new();
        for kind in snapshot.kinds() {
            let rollout = self.rollout.kind(kind);
            let wanted = |stored: &&std::sync::Arc<Stored>| {
                key.is_empty() || stored.resource.id.key() == key
            };
            rules.extend(
                snapshot.kind(kind).values().filter(wanted).map(|s| self.rule(s, &rollout)),
            );
        }
        let problems = snapshot.problems.iter().chain(&snapshot.down).map(problem).collect();
        Ok(Response::new(GetStatusResponse {
            rules,
            problems,
            lineage: snapshot.lineage.to_string(),
            revision: snapshot.revision,
            ready: self.readiness.is_ready(),
            blockers: self.readiness.blockers(),
            clients: u32::try_from(self.rollout.len()).unwrap_or(u32::MAX),
        }))
    }

    async fn list_clients(
        &self,
        _: Request<ListClientsRequest>,
    ) -> Result<Response<ListClientsResponse>, Status> {
        let clients = self.rollout.clients().into_iter().map(client).collect();
        Ok(Response::new(ListClientsResponse { clients }))
    }
}

fn problem(problem: &StoreProblem) -> Problem {
    Problem {
        file: problem.file.clone(),
        line: problem.line,
        column: problem.column,
        code: problem.code.to_string(),
        field: problem.field.clone(),
        message: problem.message.clone(),
        hint: problem.hint.clone(),
        resource: problem.resource.clone(),
        last_good_in_force: problem.last_good_in_force,
    }
}

fn verdicts(told: Told) -> Vec<Verdict> {
    let verdict = |(verdict, tally): (_, reports::Tally)| {
        let (sample, at) = tally.sample.unwrap_or((String::new(), UNIX_EPOCH));
        let at = at.duration_since(UNIX_EPOCH).unwrap_or_default();
        Verdict {
            verdict: reports::name(verdict),
            count: tally.count,
            sample,
            sampled_at: i64::try_from(at.as_millis()).unwrap_or(i64::MAX),
        }
    };
    told.verdicts.into_iter().map(verdict).collect()
}

fn client(client: ClientStatus) -> Client {
    let since = client.peer.connected_at.duration_since(UNIX_EPOCH).unwrap_or_default();
    Client {
        spiffe_id: client.peer.spiffe_id,
        instance: client.node.instance,
        agent: client.node.agent,
        peer: client.peer.address.map(|address| address.to_string()).unwrap_or_default(),
        connected_at: i64::try_from(since.as_millis()).unwrap_or(i64::MAX),
        kinds: client
            .kinds
            .into_iter()
            .map(|kind| ClientKind {
                r#type: kind.kind.type_name.to_owned(),
                sent_revision: kind.sent_revision,
                acked_revision: kind.acked_revision,
                state: kind.state.as_str().to_owned(),
                rejected: kind
                    .rejected
                    .into_iter()
                    .map(|(key, reason)| RejectedRule { key, reason })
                    .collect(),
            })
            .collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_socket_is_its_owners_and_replaces_only_a_dead_one() {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("plane.sock");
        let first = bind(&path).expect("bound");
        assert_eq!(fs::metadata(&path).expect("there").permissions().mode() & 0o777, 0o600);
        assert_eq!(bind(&path).expect_err("it answers").kind(), io::ErrorKind::AddrInUse);
        drop(first);
        bind(&path).expect("the dead one is replaced");
        assert_eq!(fs::read_dir(dir.path()).expect("listed").count(), 1, "nothing is left aside");

        let file = dir.path().join("notes.txt");
        fs::write(&file, "mine").expect("written");
        assert_eq!(bind(&file).expect_err("no socket").kind(), io::ErrorKind::AlreadyExists);
        assert_eq!(fs::read_to_string(&file).expect("still there"), "mine");
    }
}
