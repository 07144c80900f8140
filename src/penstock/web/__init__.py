"""A page to look at jobs and to drive them, and the REST interface behind the page.

A server runs in the process of the driver, on a thread of its own, and shows all jobs of the process.

    watched_jobs   asks each job for what its driver knows          (runtime/facts.py)
    picture        makes one plain document of that per job: the only source of everything that is shown
    answers/       pure functions from documents to answers
    routes         the one list of all addresses; the OpenAPI document is made from it
    access         who may ask: host, origin, token
    app, server    HTTP
"""
