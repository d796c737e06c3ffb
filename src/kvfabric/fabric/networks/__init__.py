"""A load balancer and a flow engine joined behind the ``Network`` port."""
