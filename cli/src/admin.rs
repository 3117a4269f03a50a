//! The plane's Unix socket.

use std::path::Path;

use anyhow::{Context, Result};
use hyper_util::rt::TokioIo;
use rulecast_api::proto::admin::v1::admin_service_client::AdminServiceClient;
use tokio::net::UnixStream;
use tonic::transport::{Channel, Endpoint};

/// Connects to the plane whose socket this is.
pub(crate) async fn connect(socket: &Path) -> Result<AdminServiceClient<Channel>> {
    let path = socket.to_owned();
    let channel = Endpoint::from_static("http://plane.local")
        .connect_with_connector(tower::service_fn(move |_| {
            let path = path.clone();
            async move { UnixStream::connect(path).await.map(TokioIo::new) }
        }))
        .await
        .with_context(|| {
            format!(
                "RC0702: no plane answers at {}; start `rulecast dds`, or name its socket with --socket",
                socket.display()
            )
        })?;
    Ok(AdminServiceClient::new(channel))
}
