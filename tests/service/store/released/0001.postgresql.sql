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
CREATE TABLE public.projects (
    name text NOT NULL,
    weight double precision NOT NULL,
    max_gpus integer,
    max_running integer,
    max_queued integer,
    settings json NOT NULL,
    created double precision NOT NULL
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
INSERT INTO public.alembic_version VALUES ('0001');
INSERT INTO public.attempts VALUES ('attempt-01m85sacz5grnk8t32hy9f834f', 'job-01m85sacydf3k9hv6vsm5hsbxd', 1, 1, 'local', '[{"host": "here", "gpus": [0]}]', '{"gpus": 0, "gpu_memory": 0, "gpu_kind": null, "cpus": 1, "memory": 0, "hosts": 1}', 'ended', '{}', 1795490657.2670462, NULL, 1795490657.3498433, NULL, NULL, '', 0, 0);
INSERT INTO public.events VALUES ('job-01m85sacydf3k9hv6vsm5hsbxd', 1, 1795490657.2330186, 'state', NULL, NULL, NULL, '{"state": "queued"}');
INSERT INTO public.events VALUES ('job-01m85sacydf3k9hv6vsm5hsbxd', 2, 1795490657.277288, 'state', NULL, NULL, 'attempt-01m85sacz5grnk8t32hy9f834f', '{"state": "starting", "from": "queued"}');
INSERT INTO public.events VALUES ('job-01m85sacydf3k9hv6vsm5hsbxd', 3, 1795490657.357929, 'state', NULL, NULL, 'attempt-01m85sacz5grnk8t32hy9f834f', '{"state": "succeeded", "from": "starting"}');
INSERT INTO public.gpu_slots VALUES ('here', 0, 'H200', 137438953472, '', true, NULL);
INSERT INTO public.hosts VALUES ('here', 'local', 1, 0, 'up', 1795490657.1577141, '{}');
INSERT INTO public.jobs VALUES ('job-01m85sacydf3k9hv6vsm5hsbxd', 'p', 'api', '', 'name: é
', '[]', '{"gpus": 0, "gpu_memory": 0, "gpu_kind": null, "cpus": 1, "memory": 0, "hosts": 1}', '[]', '[]', '{}', '30c49a53ab50c197b11a04880199962e0922898554d298342aa9e5e34e024135', 'k', '', 0, NULL, NULL, 3, 'succeeded', NULL, '', 0, 1795490657.2330186, 1795490657.357929, NULL, 1795490657.357929, 0, 0, 0, 'attempt-01m85sacz5grnk8t32hy9f834f', 1, 3, '{}');
INSERT INTO public.leases VALUES ('job-01m85sacydf3k9hv6vsm5hsbxd', '', 1, 0, NULL);
INSERT INTO public.projects VALUES ('p', 1, NULL, NULL, NULL, '{}', 1795490657.1932266);
INSERT INTO public.tokens VALUES ('token-01m85sacx5p4acgzjacp5r3dyz', 'abc', '0000000000000000000000000000000000000000000000000000000000000000', 'p', 'admin', '', 1795490657.189382, NULL, NULL, NULL);
INSERT INTO public.tokens VALUES ('token-01m85sad2n1xpw9ht4eehb00ep', 'released0000', 'd9ef4334ec1e720d52182936117c00ed352c044d0f8d46cd845298cbc1869b72', 'p', 'admin', '', 1795490657.3659651, NULL, NULL, NULL);
ALTER TABLE ONLY public.alembic_version
    ADD CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num);
ALTER TABLE ONLY public.attempts
    ADD CONSTRAINT pk_attempts PRIMARY KEY (id);
ALTER TABLE ONLY public.events
    ADD CONSTRAINT pk_events PRIMARY KEY (job, id);
ALTER TABLE ONLY public.gpu_slots
    ADD CONSTRAINT pk_gpu_slots PRIMARY KEY (host, number);
ALTER TABLE ONLY public.hosts
    ADD CONSTRAINT pk_hosts PRIMARY KEY (name);
ALTER TABLE ONLY public.jobs
    ADD CONSTRAINT pk_jobs PRIMARY KEY (id);
ALTER TABLE ONLY public.leases
    ADD CONSTRAINT pk_leases PRIMARY KEY (name);
ALTER TABLE ONLY public.projects
    ADD CONSTRAINT pk_projects PRIMARY KEY (name);
ALTER TABLE ONLY public.tokens
    ADD CONSTRAINT pk_tokens PRIMARY KEY (id);
ALTER TABLE ONLY public.attempts
    ADD CONSTRAINT uq_attempts_job_number UNIQUE (job, number);
ALTER TABLE ONLY public.jobs
    ADD CONSTRAINT uq_jobs_project_idempotency_key UNIQUE (project, idempotency_key);
ALTER TABLE ONLY public.tokens
    ADD CONSTRAINT uq_tokens_prefix UNIQUE (prefix);
CREATE INDEX ix_attempts_state ON public.attempts USING btree (state);
CREATE INDEX ix_jobs_project_id ON public.jobs USING btree (project, id);
CREATE INDEX ix_jobs_project_state_id ON public.jobs USING btree (project, state, id);
CREATE INDEX ix_jobs_state_id ON public.jobs USING btree (state, id);
CREATE INDEX ix_jobs_updated ON public.jobs USING btree (updated);
CREATE INDEX ix_leases_holder ON public.leases USING btree (holder);
ALTER TABLE ONLY public.attempts
    ADD CONSTRAINT fk_attempts_job_jobs FOREIGN KEY (job) REFERENCES public.jobs(id);
ALTER TABLE ONLY public.events
    ADD CONSTRAINT fk_events_job_jobs FOREIGN KEY (job) REFERENCES public.jobs(id);
ALTER TABLE ONLY public.gpu_slots
    ADD CONSTRAINT fk_gpu_slots_host_hosts FOREIGN KEY (host) REFERENCES public.hosts(name);
ALTER TABLE ONLY public.jobs
    ADD CONSTRAINT fk_jobs_project_projects FOREIGN KEY (project) REFERENCES public.projects(name);
ALTER TABLE ONLY public.tokens
    ADD CONSTRAINT fk_tokens_project_projects FOREIGN KEY (project) REFERENCES public.projects(name);
