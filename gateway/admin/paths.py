"""Where the administration API lies."""

ROOT = "/v1/organization"
ONE = ROOT + "/projects/{project_id}"
