BEGIN TRANSACTION;
CREATE TABLE alembic_version (
	version_num VARCHAR(32) NOT NULL, 
	CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num)
);
INSERT INTO "alembic_version" VALUES('0001');
CREATE TABLE attempts (
	id TEXT NOT NULL, 
	job TEXT NOT NULL, 
	number INTEGER NOT NULL, 
	fencing BIGINT NOT NULL, 
	executor TEXT NOT NULL, 
	placement JSON NOT NULL, 
	resources JSON NOT NULL, 
	state TEXT NOT NULL, 
	handle JSON NOT NULL, 
	created DOUBLE NOT NULL, 
	started DOUBLE, 
	ended DOUBLE, 
	exit_code INTEGER, 
	reason TEXT, 
	message TEXT NOT NULL, 
	ingested BIGINT NOT NULL, 
	"offset" BIGINT NOT NULL, 
	CONSTRAINT pk_attempts PRIMARY KEY (id), 
	CONSTRAINT fk_attempts_job_jobs FOREIGN KEY(job) REFERENCES jobs (id), 
	CONSTRAINT uq_attempts_job_number UNIQUE (job, number)
);
INSERT INTO "attempts" VALUES('attempt-01m85sac6x0tqh4vmrc0r7h6jz','job-01m85sac65sfz2ttg7f9ea710b',1,1,'local','[{"host": "here", "gpus": [0]}]','{"gpus": 0, "gpu_memory": 0, "gpu_kind": null, "cpus": 1, "memory": 0, "hosts": 1}','ended','{}',1.79549065648024535179e+09,NULL,1.79549065659030294417e+09,NULL,NULL,'',0,0);
CREATE TABLE events (
	job TEXT NOT NULL, 
	id BIGINT NOT NULL, 
	time DOUBLE NOT NULL, 
	event TEXT NOT NULL, 
	stage TEXT, 
	step BIGINT, 
	attempt TEXT, 
	fields JSON NOT NULL, 
	CONSTRAINT pk_events PRIMARY KEY (job, id), 
	CONSTRAINT fk_events_job_jobs FOREIGN KEY(job) REFERENCES jobs (id)
);
INSERT INTO "events" VALUES('job-01m85sac65sfz2ttg7f9ea710b',1,1.7954906564583363533e+09,'state',NULL,NULL,NULL,'{"state": "queued"}');
INSERT INTO "events" VALUES('job-01m85sac65sfz2ttg7f9ea710b',2,1.79549065650001096728e+09,'state',NULL,NULL,'attempt-01m85sac6x0tqh4vmrc0r7h6jz','{"state": "starting", "from": "queued"}');
INSERT INTO "events" VALUES('job-01m85sac65sfz2ttg7f9ea710b',3,1.79549065659163093562e+09,'state',NULL,NULL,'attempt-01m85sac6x0tqh4vmrc0r7h6jz','{"state": "succeeded", "from": "starting"}');
CREATE TABLE gpu_slots (
	host TEXT NOT NULL, 
	number INTEGER NOT NULL, 
	kind TEXT NOT NULL, 
	memory BIGINT NOT NULL, 
	uuid TEXT NOT NULL, 
	present BOOLEAN NOT NULL, 
	attempt TEXT, 
	CONSTRAINT pk_gpu_slots PRIMARY KEY (host, number), 
	CONSTRAINT fk_gpu_slots_host_hosts FOREIGN KEY(host) REFERENCES hosts (name)
);
INSERT INTO "gpu_slots" VALUES('here',0,'H200',137438953472,'',1,NULL);
CREATE TABLE hosts (
	name TEXT NOT NULL, 
	executor TEXT NOT NULL, 
	cpus INTEGER NOT NULL, 
	memory BIGINT NOT NULL, 
	state TEXT NOT NULL, 
	seen DOUBLE NOT NULL, 
	info JSON NOT NULL, 
	CONSTRAINT pk_hosts PRIMARY KEY (name)
);
INSERT INTO "hosts" VALUES('here','local',1,0,'up',1.79549065638143420225e+09,'{}');
CREATE TABLE jobs (
	id TEXT NOT NULL, 
	project TEXT NOT NULL, 
	kind TEXT NOT NULL, 
	name TEXT NOT NULL, 
	recipe TEXT NOT NULL, 
	overrides JSON NOT NULL, 
	resources JSON NOT NULL, 
	depends_on JSON NOT NULL, 
	secrets JSON NOT NULL, 
	openai JSON NOT NULL, 
	digest TEXT NOT NULL, 
	idempotency_key TEXT, 
	submitted_by TEXT NOT NULL, 
	asked_priority INTEGER NOT NULL, 
	deadline DOUBLE, 
	expected_seconds DOUBLE, 
	max_retries INTEGER NOT NULL, 
	state TEXT NOT NULL, 
	reason TEXT, 
	message TEXT NOT NULL, 
	priority INTEGER NOT NULL, 
	created DOUBLE NOT NULL, 
	updated DOUBLE NOT NULL, 
	started DOUBLE, 
	finished DOUBLE, 
	not_before DOUBLE NOT NULL, 
	retries INTEGER NOT NULL, 
	preemptions INTEGER NOT NULL, 
	attempt TEXT, 
	attempts INTEGER NOT NULL, 
	last_event BIGINT NOT NULL, 
	progress JSON NOT NULL, 
	CONSTRAINT pk_jobs PRIMARY KEY (id), 
	CONSTRAINT fk_jobs_project_projects FOREIGN KEY(project) REFERENCES projects (name), 
	CONSTRAINT uq_jobs_project_idempotency_key UNIQUE (project, idempotency_key)
);
INSERT INTO "jobs" VALUES('job-01m85sac65sfz2ttg7f9ea710b','p','api','','name: é
','[]','{"gpus": 0, "gpu_memory": 0, "gpu_kind": null, "cpus": 1, "memory": 0, "hosts": 1}','[]','[]','{}','30c49a53ab50c197b11a04880199962e0922898554d298342aa9e5e34e024135','k','',0,NULL,NULL,3,'succeeded',NULL,'',0,1.7954906564583363533e+09,1.79549065659163093562e+09,NULL,1.79549065659163093562e+09,0.0,0,0,'attempt-01m85sac6x0tqh4vmrc0r7h6jz',1,3,'{}');
CREATE TABLE leases (
	name TEXT NOT NULL, 
	holder TEXT NOT NULL, 
	fencing BIGINT NOT NULL, 
	expires DOUBLE NOT NULL, 
	attempt TEXT, 
	CONSTRAINT pk_leases PRIMARY KEY (name)
);
INSERT INTO "leases" VALUES('job-01m85sac65sfz2ttg7f9ea710b','',1,0.0,NULL);
CREATE TABLE projects (
	name TEXT NOT NULL, 
	weight DOUBLE NOT NULL, 
	max_gpus INTEGER, 
	max_running INTEGER, 
	max_queued INTEGER, 
	settings JSON NOT NULL, 
	created DOUBLE NOT NULL, 
	CONSTRAINT pk_projects PRIMARY KEY (name)
);
INSERT INTO "projects" VALUES('p',1.0,NULL,NULL,NULL,'{}',1.7954906564144220352e+09);
CREATE TABLE tokens (
	id TEXT NOT NULL, 
	prefix TEXT NOT NULL, 
	sha256 TEXT NOT NULL, 
	project TEXT NOT NULL, 
	role TEXT NOT NULL, 
	name TEXT NOT NULL, 
	created DOUBLE NOT NULL, 
	expires DOUBLE, 
	revoked DOUBLE, 
	last_used DOUBLE, 
	CONSTRAINT pk_tokens PRIMARY KEY (id), 
	CONSTRAINT fk_tokens_project_projects FOREIGN KEY(project) REFERENCES projects (name), 
	CONSTRAINT uq_tokens_prefix UNIQUE (prefix)
);
INSERT INTO "tokens" VALUES('token-01m85sac4x8agc5z35yy2c23jz','abc','0000000000000000000000000000000000000000000000000000000000000000','p','admin','',1.79549065641304492948e+09,NULL,NULL,NULL);
INSERT INTO "tokens" VALUES('token-01m85sacb16fmt47zh1en99prg','released0000','d9ef4334ec1e720d52182936117c00ed352c044d0f8d46cd845298cbc1869b72','p','admin','',1.79549065660944795605e+09,NULL,NULL,NULL);
CREATE INDEX ix_jobs_project_id ON jobs (project, id);
CREATE INDEX ix_jobs_project_state_id ON jobs (project, state, id);
CREATE INDEX ix_jobs_state_id ON jobs (state, id);
CREATE INDEX ix_jobs_updated ON jobs (updated);
CREATE INDEX ix_attempts_state ON attempts (state);
CREATE INDEX ix_leases_holder ON leases (holder);
COMMIT;
