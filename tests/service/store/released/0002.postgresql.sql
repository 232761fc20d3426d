CREATE TABLE public.alembic_version (
    version_num character varying(32) NOT NULL
);
CREATE TABLE public.attempts (
    id text NOT NULL,
    job text NOT NULL,
    number integer NOT NULL,
    fencing bigint NOT NULL,
    executor text NOT NULL,
    placement json NOT NULL,
    resources json NOT NULL,
    state text NOT NULL,
    handle json NOT NULL,
    created double precision NOT NULL,
    started double precision,
    ended double precision,
    exit_code integer,
    reason text,
    message text NOT NULL,
    ingested bigint NOT NULL,
    "offset" bigint NOT NULL
);
CREATE TABLE public.events (
    job text NOT NULL,
    id bigint NOT NULL,
    "time" double precision NOT NULL,
    event text NOT NULL,
    stage text,
    step bigint,
    attempt text,
    fields json NOT NULL
);
CREATE TABLE public.files (
    id text NOT NULL,
    project text NOT NULL,
    filename text NOT NULL,
    purpose text NOT NULL,
    state text NOT NULL,
    bytes bigint,
    sha256 text,
    "offset" bigint NOT NULL,
    created_by text NOT NULL,
    created double precision NOT NULL,
    completed double precision,
    openai json NOT NULL
);
CREATE TABLE public.gpu_slots (
    host text NOT NULL,
    number integer NOT NULL,
    kind text NOT NULL,
    memory bigint NOT NULL,
    uuid text NOT NULL,
    present boolean NOT NULL,
    attempt text
);
CREATE TABLE public.hosts (
    name text NOT NULL,
    executor text NOT NULL,
    cpus integer NOT NULL,
    memory bigint NOT NULL,
    state text NOT NULL,
    seen double precision NOT NULL,
    info json NOT NULL
);
CREATE TABLE public.jobs (
    id text NOT NULL,
    project text NOT NULL,
    kind text NOT NULL,
    name text NOT NULL,
    recipe text NOT NULL,
    overrides json NOT NULL,
    resources json NOT NULL,
    depends_on json NOT NULL,
    secrets json NOT NULL,
    openai json NOT NULL,
    digest text NOT NULL,
    idempotency_key text,
    submitted_by text NOT NULL,
    asked_priority integer NOT NULL,
    deadline double precision,
    expected_seconds double precision,
    max_retries integer NOT NULL,
    state text NOT NULL,
    reason text,
    message text NOT NULL,
    priority integer NOT NULL,
    created double precision NOT NULL,
    updated double precision NOT NULL,
    started double precision,
    finished double precision,
    not_before double precision NOT NULL,
    retries integer NOT NULL,
    preemptions integer NOT NULL,
    attempt text,
    attempts integer NOT NULL,
    last_event bigint NOT NULL,
    progress json NOT NULL
);
CREATE TABLE public.leases (
    name text NOT NULL,
    holder text NOT NULL,
    fencing bigint NOT NULL,
    expires double precision NOT NULL,
    attempt text
);
CREATE TABLE public.models (
    id text NOT NULL,
    project text NOT NULL,
    name text NOT NULL,
    fingerprint text NOT NULL,
    job text NOT NULL,
    path text NOT NULL,
    base text NOT NULL,
    parameters bigint,
    scores json NOT NULL,
    openai json NOT NULL,
    created double precision NOT NULL
);
CREATE TABLE public.projects (
    name text NOT NULL,
    weight double precision NOT NULL,
    max_gpus integer,
    max_running integer,
    max_queued integer,
    settings json NOT NULL,
    created double precision NOT NULL
);
CREATE TABLE public.scores (
    job text NOT NULL,
    stage text NOT NULL,
    benchmark text NOT NULL,
    metric text NOT NULL,
    project text NOT NULL,
    value double precision NOT NULL,
    created double precision NOT NULL
);
CREATE TABLE public.stage_results (
    job text NOT NULL,
    stage text NOT NULL,
    attempt text NOT NULL,
    fingerprint text NOT NULL,
    seconds double precision NOT NULL,
    reused boolean NOT NULL,
    metrics json NOT NULL,
    finished double precision NOT NULL
);
CREATE TABLE public.tokens (
    id text NOT NULL,
    prefix text NOT NULL,
    sha256 text NOT NULL,
    project text NOT NULL,
    role text NOT NULL,
    name text NOT NULL,
    created double precision NOT NULL,
    expires double precision,
    revoked double precision,
    last_used double precision
);
INSERT INTO public.alembic_version VALUES ('0002');
INSERT INTO public.attempts VALUES ('attempt-01m85saepjx3gby4tvsjwxh0fe', 'job-01m85saensa6t0nhctay3j5yhc', 1, 1, 'local', '[{"host": "here", "gpus": [0]}]', '{"gpus": 0, "gpu_memory": 0, "gpu_kind": null, "cpus": 1, "memory": 0, "hosts": 1}', 'ended', '{}', 1795490659.0437517, NULL, 1795490659.1493375, NULL, NULL, '', 0, 0);
INSERT INTO public.events VALUES ('job-01m85saensa6t0nhctay3j5yhc', 1, 1795490659.0132663, 'state', NULL, NULL, NULL, '{"state": "queued"}');
INSERT INTO public.events VALUES ('job-01m85saensa6t0nhctay3j5yhc', 2, 1795490659.061087, 'state', NULL, NULL, 'attempt-01m85saepjx3gby4tvsjwxh0fe', '{"state": "starting", "from": "queued"}');
INSERT INTO public.events VALUES ('job-01m85saensa6t0nhctay3j5yhc', 3, 1795490659.1521552, 'state', NULL, NULL, 'attempt-01m85saepjx3gby4tvsjwxh0fe', '{"state": "succeeded", "from": "starting"}');
INSERT INTO public.files VALUES ('file-01m85saen9b8prwdwdh5dkc44d', 'p', 'train.jsonl', 'fine-tune', 'uploading', NULL, NULL, 0, '', 1795490658.9855707, NULL, '{}');
INSERT INTO public.gpu_slots VALUES ('here', 0, 'H200', 137438953472, '', true, NULL);
INSERT INTO public.hosts VALUES ('here', 'local', 1, 0, 'up', 1795490658.9459612, '{}');
INSERT INTO public.jobs VALUES ('job-01m85saensa6t0nhctay3j5yhc', 'p', 'api', '', 'name: é
', '[]', '{"gpus": 0, "gpu_memory": 0, "gpu_kind": null, "cpus": 1, "memory": 0, "hosts": 1}', '[]', '[]', '{}', '30c49a53ab50c197b11a04880199962e0922898554d298342aa9e5e34e024135', 'k', '', 0, NULL, NULL, 3, 'succeeded', NULL, '', 0, 1795490659.0132663, 1795490659.1521552, NULL, 1795490659.1521552, 0, 0, 0, 'attempt-01m85saepjx3gby4tvsjwxh0fe', 1, 3, '{}');
INSERT INTO public.leases VALUES ('job-01m85saensa6t0nhctay3j5yhc', '', 1, 0, NULL);
INSERT INTO public.models VALUES ('model-01m85saesqvbt12hwhd5z5k80x', 'p', 'm', 'f', 'job-01m85saensa6t0nhctay3j5yhc', '/m', '', NULL, '{}', '{}', 1795490659.1274343);
INSERT INTO public.projects VALUES ('p', 1, NULL, NULL, NULL, '{}', 1795490658.9657347);
INSERT INTO public.scores VALUES ('job-01m85saensa6t0nhctay3j5yhc', 'evaluate', 'glue/mrpc', 'f1', 'p', 0.5, 1795490659.1025653);
INSERT INTO public.stage_results VALUES ('job-01m85saensa6t0nhctay3j5yhc', 'evaluate', 'attempt-01m85saepjx3gby4tvsjwxh0fe', '', 0, false, '{"glue/mrpc": {"f1": 0.5}}', 1795490659.0870755);
INSERT INTO public.tokens VALUES ('token-01m85saemj13y06n77v0vjt1b7', 'abc', '0000000000000000000000000000000000000000000000000000000000000000', 'p', 'admin', '', 1795490658.9628878, NULL, NULL, NULL);
INSERT INTO public.tokens VALUES ('token-01m85saev461nch37pgacqyw0p', 'released0000', 'd9ef4334ec1e720d52182936117c00ed352c044d0f8d46cd845298cbc1869b72', 'p', 'admin', '', 1795490659.1724308, NULL, NULL, NULL);
ALTER TABLE ONLY public.alembic_version
    ADD CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num);
ALTER TABLE ONLY public.attempts
    ADD CONSTRAINT pk_attempts PRIMARY KEY (id);
ALTER TABLE ONLY public.events
    ADD CONSTRAINT pk_events PRIMARY KEY (job, id);
ALTER TABLE ONLY public.files
    ADD CONSTRAINT pk_files PRIMARY KEY (id);
ALTER TABLE ONLY public.gpu_slots
    ADD CONSTRAINT pk_gpu_slots PRIMARY KEY (host, number);
ALTER TABLE ONLY public.hosts
    ADD CONSTRAINT pk_hosts PRIMARY KEY (name);
ALTER TABLE ONLY public.jobs
    ADD CONSTRAINT pk_jobs PRIMARY KEY (id);
ALTER TABLE ONLY public.leases
    ADD CONSTRAINT pk_leases PRIMARY KEY (name);
ALTER TABLE ONLY public.models
    ADD CONSTRAINT pk_models PRIMARY KEY (id);
ALTER TABLE ONLY public.projects
    ADD CONSTRAINT pk_projects PRIMARY KEY (name);
ALTER TABLE ONLY public.scores
    ADD CONSTRAINT pk_scores PRIMARY KEY (job, stage, benchmark, metric);
ALTER TABLE ONLY public.stage_results
    ADD CONSTRAINT pk_stage_results PRIMARY KEY (job, stage);
ALTER TABLE ONLY public.tokens
    ADD CONSTRAINT pk_tokens PRIMARY KEY (id);
ALTER TABLE ONLY public.attempts
    ADD CONSTRAINT uq_attempts_job_number UNIQUE (job, number);
ALTER TABLE ONLY public.jobs
    ADD CONSTRAINT uq_jobs_project_idempotency_key UNIQUE (project, idempotency_key);
ALTER TABLE ONLY public.models
    ADD CONSTRAINT uq_models_project_name_fingerprint UNIQUE (project, name, fingerprint);
ALTER TABLE ONLY public.tokens
    ADD CONSTRAINT uq_tokens_prefix UNIQUE (prefix);
CREATE INDEX ix_attempts_state ON public.attempts USING btree (state);
CREATE INDEX ix_files_project_id ON public.files USING btree (project, id);
CREATE INDEX ix_files_project_sha256 ON public.files USING btree (project, sha256);
CREATE INDEX ix_jobs_project_id ON public.jobs USING btree (project, id);
CREATE INDEX ix_jobs_project_state_id ON public.jobs USING btree (project, state, id);
CREATE INDEX ix_jobs_state_id ON public.jobs USING btree (state, id);
CREATE INDEX ix_jobs_updated ON public.jobs USING btree (updated);
CREATE INDEX ix_leases_holder ON public.leases USING btree (holder);
CREATE INDEX ix_models_project_id ON public.models USING btree (project, id);
CREATE INDEX ix_scores_project_benchmark_metric_value ON public.scores USING btree (project, benchmark, metric, value);
ALTER TABLE ONLY public.attempts
    ADD CONSTRAINT fk_attempts_job_jobs FOREIGN KEY (job) REFERENCES public.jobs(id);
ALTER TABLE ONLY public.events
    ADD CONSTRAINT fk_events_job_jobs FOREIGN KEY (job) REFERENCES public.jobs(id);
ALTER TABLE ONLY public.files
    ADD CONSTRAINT fk_files_project_projects FOREIGN KEY (project) REFERENCES public.projects(name);
ALTER TABLE ONLY public.gpu_slots
    ADD CONSTRAINT fk_gpu_slots_host_hosts FOREIGN KEY (host) REFERENCES public.hosts(name);
ALTER TABLE ONLY public.jobs
    ADD CONSTRAINT fk_jobs_project_projects FOREIGN KEY (project) REFERENCES public.projects(name);
ALTER TABLE ONLY public.models
    ADD CONSTRAINT fk_models_job_jobs FOREIGN KEY (job) REFERENCES public.jobs(id);
ALTER TABLE ONLY public.models
    ADD CONSTRAINT fk_models_project_projects FOREIGN KEY (project) REFERENCES public.projects(name);
ALTER TABLE ONLY public.scores
    ADD CONSTRAINT fk_scores_job_jobs FOREIGN KEY (job) REFERENCES public.jobs(id);
ALTER TABLE ONLY public.scores
    ADD CONSTRAINT fk_scores_project_projects FOREIGN KEY (project) REFERENCES public.projects(name);
ALTER TABLE ONLY public.stage_results
    ADD CONSTRAINT fk_stage_results_job_jobs FOREIGN KEY (job) REFERENCES public.jobs(id);
ALTER TABLE ONLY public.tokens
    ADD CONSTRAINT fk_tokens_project_projects FOREIGN KEY (project) REFERENCES public.projects(name);
